"""Where daemons listen that were told nothing, a conf file of ours, other machines, or a conf file of RocketMQ."""

from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.tidy.tree import ROOT

# As in RocketMQ's conf/broker.conf and conf/container/2container-2m-2s/nameserver.conf.
ROCKETMQS = {
    "broker": "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\ndeleteWhen = 04\n"
    "fileReservedTime = 48\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n",
    "namesrv": "supportActingMaster=true\n",
    "mqproxy": '{"rocketMQClusterName": "DefaultCluster"}',
}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESRV_ADDR", "SKYLARK_BIND_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def options_of(command: str, *arguments: str) -> Result:
    result = CliRunner().invoke(import_module(f"skylark.{command}.cli").main, [*arguments, "-p"])
    assert result.exit_code == 0, result.stderr
    return result


def address(result: Result) -> str:
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("bindAddress=")]
    return line.removeprefix("bindAddress=")


@pytest.mark.parametrize("command", ROCKETMQS)
def test_without_a_conf_file_only_this_machine_can_connect(command: str) -> None:
    assert address(options_of(command)) == "127.0.0.1"


def test_a_closed_broker_registers_loopback() -> None:
    assert "brokerIP1=127.0.0.1" in options_of("broker").stdout.splitlines()


@pytest.mark.parametrize(("command", "conf"), [("broker", "broker.conf"), ("namesrv", "namesrv.conf")])
def test_with_a_conf_file_of_ours_too(command: str, conf: str, tmp_path: Path) -> None:
    text = (ROOT / "conf" / conf).read_text()
    unset = tmp_path / conf
    unset.write_text(text.replace("bindAddress=127.0.0.1\n", ""))
    assert unset.read_text() != text
    assert address(options_of(command, "-c", str(unset))) == "127.0.0.1"


@pytest.mark.parametrize("command", ROCKETMQS)
def test_a_conf_file_of_rocketmq_opens_the_port_to_other_machines(command: str, tmp_path: Path) -> None:
    conf = tmp_path / "rocketmqs"
    conf.write_text(ROCKETMQS[command])
    assert address(options_of(command, "-c", str(conf))) == "0.0.0.0"
    assert address(options_of(command, "-c", str(conf), "--bind-address", "127.0.0.1")) == "127.0.0.1"


@pytest.mark.parametrize("command", ["broker", "mqproxy"])
def test_a_nameserver_on_another_machine_opens_the_port(command: str) -> None:
    assert address(options_of(command, "--namesrv-addr", "127.0.0.1:9876")) == "127.0.0.1"
    assert address(options_of(command, "--namesrv-addr", "127.0.0.1:9876;10.0.0.5:9876")) == "0.0.0.0"


@pytest.mark.parametrize("command", ROCKETMQS)
def test_an_image_sets_the_address_in_the_environment(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYLARK_BIND_ADDRESS", "0.0.0.0")
    assert address(options_of(command)) == "0.0.0.0"
    assert address(options_of(command, "--bind-address", "10.0.0.5")) == "10.0.0.5"
