"""Starting: ready, or one clear line and an exit code that is not 0."""

import subprocess
from importlib import import_module
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from scripts.daemons import HOST, Daemon, broker_daemon, free_port, namesrv_daemon
from skylark import Admin, Message, Producer
from tests.broker.replication.dledger.groups import group
from tests.support.daemons import SMALL, running, start, until_registered
from tests.support.waiting import until

READY_TIMEOUT_S = 60


def refused(daemon: Daemon) -> list[str]:
    """The output of a daemon that cannot start; its exit code is 1."""
    run = subprocess.run(daemon.command, capture_output=True, text=True, timeout=READY_TIMEOUT_S)
    assert run.returncode == 1, run.stderr
    # log lines begin with the year
    return [line for line in run.stderr.splitlines() if line and not line[0].isdigit()]


def refused_at_once(command: str, *arguments: str) -> list[str]:
    """The output of a daemon that refuses its options; its exit code is 1."""
    result = CliRunner().invoke(import_module(f"skylark.{command}.cli").main, [*arguments, "-p"], prog_name=command)
    assert result.exit_code == 1, result.output
    return result.stderr.splitlines()


async def test_a_broker_without_namesrv_serves_and_registers_when_there_is_one(tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    broker = broker_daemon(tmp_path, "broker-a", namesrv.addr, 0, *SMALL)
    broker.start()
    try:
        await until(broker.ready, "the broker serves")
        async with Admin(namesrv.addr) as admin:
            assert (await admin.broker_config(broker.addr))["brokerName"] == "broker-a"
        await until(lambda: namesrv.addr.encode() in broker.logged, "the broker says which NameServer is missing")
        await start(namesrv)
        async with Admin(namesrv.addr) as admin:

            async def registered() -> bool:
                return "broker-a" in (await admin.cluster_info()).broker_addr_table

            await until(registered, "the broker has registered")
        async with Producer(namesrv.addr) as producer:
            await producer.send(Message("made-by-a-send", b"x"))
    finally:
        for daemon in (broker, namesrv):
            if daemon.runs:
                daemon.kill()
    assert b"Traceback" not in broker.logged


async def test_a_port_in_use(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        for taken in (cluster.namesrvs[0], cluster.brokers[0]):
            name = "namesrv" if taken.name == "namesrv" else "broker"
            home = tmp_path / f"second-{name}"
            home.mkdir()
            second = (
                namesrv_daemon(home, port=taken.port)
                if name == "namesrv"
                else broker_daemon(home, "b", "", taken.port, *SMALL)
            )
            (line,) = refused(second)
            where = f"{HOST}:{taken.port}"
            assert line == f"{name}: port {where} is in use; stop the process that uses it or choose another listenPort"


async def test_a_store_that_another_broker_holds(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        second = broker_daemon(tmp_path, "broker-a", "", 0, *SMALL)
        (line,) = refused(second)
        assert line.startswith("broker: ") and str(tmp_path / "broker-a") in line
        assert "another" in line
        # the first one has taken no harm
        await until_registered(cluster, ["broker-a"])
        async with Producer(cluster.nameserver) as producer:
            await producer.send(Message("t", b"x"))


async def test_a_member_of_a_dledger_group_that_waits_to_join_anew_stops_at_sigterm(tmp_path: Path) -> None:
    async with group("n0", mapped_file_size_commit_log=65_536) as made:
        member = await made.start("n0")
        await (await made.leader()).send("topic", b"kept")
        left = member.kill()
        peers = f"{made.peers};n1-{HOST}:{free_port()};n2-{HOST}:{free_port()}"
    left.remove("/store/dledger/mark")
    for path in left.paths():
        file = tmp_path / "n0" / Path(path).relative_to("/store")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(left.read(path))
    broker = broker_daemon(
        tmp_path, "n0", "", 0, *SMALL, "--mapped-file-size-commit-log", "65536", "--max-message-size", "4096",
        "--enable-dleger-commit-log", "true", "--d-leger-peers", peers, "--d-leger-self-id", "n0",
    )  # fmt: skip
    broker.start()
    try:
        await until(lambda: broker.ready() or b"waits until the other members" in broker.logged, "it waits")
        broker.terminate()
        await trio.to_thread.run_sync(broker.wait_stopped)
        assert broker.exit_code == 0
    finally:
        if broker.runs:
            broker.kill()
    assert b"Traceback" not in broker.logged
    assert (tmp_path / "n0" / "commitlog").is_dir()


def test_a_store_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "broker-a").write_text("a file where the directory should be", encoding="utf-8")
    (line,) = refused(broker_daemon(tmp_path, "broker-a", "", 0, *SMALL))
    assert line.startswith(f"broker: store {tmp_path / 'broker-a'} cannot be opened: ")
    assert line.endswith("make it writable or set another storePathRootDir")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("brokerName=b\nlistenPrt=1\n", ":2: listenPrt: "),
        ("brokerName=b\n\nlistenPort=ten\n", ":3: listenPort: "),
        ("flushDiskType=SOMETIMES\n", ":1: flushDiskType: "),
        ("listenPort=70000\n", ":1: listenPort: "),
        ("aclEnable=true\n", "aclFile: "),
    ],
)
def test_a_conf_error_names_file_line_key_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    conf = tmp_path / "wrong.conf"
    conf.write_text(text, encoding="utf-8")
    (line,) = refused_at_once("broker", "-c", str(conf))
    assert line.startswith(f"broker: {conf}") and said in line
    assert "; " in line or "did you mean" in line, "a remedy"


@pytest.mark.parametrize("command", ["namesrv", "broker"])
def test_a_conf_file_that_is_not_there(tmp_path: Path, command: str) -> None:
    conf = tmp_path / "none.conf"
    (line,) = refused_at_once(command, "-c", str(conf))
    assert line.startswith(f"{command}: {conf}: ")
