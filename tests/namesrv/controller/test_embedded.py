"""A NameServer that is a Controller, and the command ``controller``."""

from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from skylark.mqcommon.options.conf_file import load_conf
from skylark.namesrv.controller.cli import main
from skylark.namesrv.controller.options import ControllerDaemonOptions
from skylark.namesrv.namesrv import Namesrv
from skylark.namesrv.options import NamesrvOptions
from skylark.remoting.net.sockets import HeldPort
from tests.namesrv.controller.controllers import StandIn, code_of, open_stand_in
from tests.support.waiting import until

CONF = Path(__file__).parents[3] / "conf" / "controller"


async def test_a_namesrv_is_a_controller_too(nursery: trio.Nursery, tmp_path: Path) -> None:
    port = HeldPort("127.0.0.1")
    at = f"127.0.0.1:{port.port}"
    options = NamesrvOptions(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(tmp_path / "kv.json"),
        enable_controller_in_namesrv=True,
        controller_d_leger_peers=f"n0-{at}",
        controller_d_leger_self_id="n0",
        controller_store_path=str(tmp_path / "controller"),
        controller_election_timeout=100,
    )
    namesrv = Namesrv(options)
    await nursery.start(namesrv.run)
    async with open_stand_in() as broker:
        await until(lambda: _joined(broker, at), "the broker has joined")
        assert (await broker.elect(at, 1)).master_address == broker.addr
        assert (tmp_path / "controller" / "n0").is_dir()
    await namesrv.stop()
    port.release()


async def _joined(broker: StandIn, at: str) -> bool:
    return await code_of(broker.join(at)) == 0


@pytest.mark.parametrize("name", ["controller-n0", "controller-n1", "controller-n2"])
def test_the_example_files(name: str) -> None:
    options = load_conf(ControllerDaemonOptions, CONF / f"{name}.conf")
    assert options.controller_d_leger_self_id == name[-2:]
    assert list(options.controller_peers) == ["n0", "n1", "n2"]


def test_the_example_file_of_a_namesrv() -> None:
    options = load_conf(NamesrvOptions, CONF / "namesrv-with-controller.conf")
    assert options.enable_controller_in_namesrv
    assert options.controller_peers == {"n0": "127.0.0.1:9877"}


def test_the_command_prints_its_options_and_explains_mistakes(tmp_path: Path) -> None:
    conf = tmp_path / "controller.conf"
    conf.write_text("controllerDLegerPeers=n0-127.0.0.1:9877\ncontrollerDLegerSelfId=n0\nmappedFileSize=1024\n")
    printed = CliRunner().invoke(main, ["-c", str(conf), "-p"])
    assert printed.exit_code == 0
    assert "controllerDLegerSelfId=n0" in printed.stdout.splitlines()
    assert "mappedFileSize: a RocketMQ option that Skylark does not use" in printed.stderr
    conf.write_text("controllerDLegerPeers=n0-127.0.0.1:9877\n")
    wrong = CliRunner().invoke(main, ["-c", str(conf)])
    assert wrong.exit_code == 1
    assert "controllerDLegerSelfId: '' is not in controllerDLegerPeers, which has n0" in wrong.stderr
    assert "\n" not in wrong.stderr.strip()
