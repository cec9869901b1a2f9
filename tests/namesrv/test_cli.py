import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from skylark.namesrv.cli import main
from skylark.remoting.protocol.dialect import loads
from skylark.remoting.protocol.requests.routes import GET_KVLIST_BY_NAMESPACE, PUT_KV_CONFIG
from tests.namesrv.peer import Peer
from tests.support.waiting import DEADLINE_S

NAMESRV = (sys.executable, "-m", "skylark.namesrv")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_the_conf_file_beats_defaults_and_flags_beat_the_conf_file(tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text("listenPort=1234\nwaitSecondsForService=9\n")
    result = invoke("-c", str(conf), "--listen-port", "4321", "-p")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    for line in ("listenPort=4321", "waitSecondsForService=9", "enableTopicList=true", f"configStorePath={conf}"):
        assert line in lines


def test_a_key_without_effect_is_a_warning(tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text("serverWorkerThreads=8\n")
    result = invoke("-c", str(conf), "-p")
    assert result.exit_code == 0
    assert result.stderr == (
        f"namesrv: {conf}:1: serverWorkerThreads: a RocketMQ option that Skylark does not use; it has no effect\n"
    )


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("# x\nlistenProt=1\n", ":2: listenProt: unknown key; did you mean listenPort?"),
        ("listenPort=many\n", ":1: listenPort: 'many' is not an integer; give a number from 0 to 65535"),
        ("listenPort=70000\n", ":1: listenPort: 70000 is too large; give a number from 0 to 65535"),
        ("\n\nenableTopicList=yes\n", ":3: enableTopicList: 'yes' is not a boolean; give true or false"),
    ],
)
def test_a_mistake_in_the_conf_is_one_line_with_its_place(tmp_path: Path, content: str, error: str) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text(content)
    result = invoke("-c", str(conf))
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"namesrv: {conf}{error}\n")


def test_a_missing_conf_is_one_line(tmp_path: Path) -> None:
    conf = tmp_path / "absent.conf"
    result = invoke("-c", str(conf))
    assert (result.exit_code, result.stderr) == (
        1,
        f"namesrv: {conf}: no such file; name a conf file that exists\n",
    )


def test_a_mistake_in_a_flag_is_one_line() -> None:
    result = invoke("--listen-port", "x")
    assert result.exit_code == 1
    assert result.stderr == "namesrv: --listen-port: 'x' is not an integer; give a number from 0 to 65535\n"


def test_a_damaged_kv_config_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("{")
    flags = ("--listen-port", "0", "--kv-config-path", str(path))
    done = subprocess.run([*NAMESRV, *flags], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert done.stderr.startswith(f"namesrv: {path} is damaged")
    assert done.stderr.count("\n") == 1


def test_the_version_is_told() -> None:
    result = invoke("--version")
    assert result.stdout == f"namesrv, version {version('skylark-mq')}\n"


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = ("--bind-address", "127.0.0.1", "--listen-port", str(port), "--kv-config-path", str(tmp_path / "kv"))
        done = subprocess.run([*NAMESRV, *flags], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"namesrv: port 127.0.0.1:{port} is in use; stop the process that uses it or choose another listenPort\n"
    )


@asynccontextmanager
async def daemon(directory: Path) -> AsyncIterator[tuple[trio.Process, Peer]]:
    """A NameServer in a process of its own, killed at the end if it still lives."""
    flags = ("--bind-address", "127.0.0.1", "--listen-port", "0", "--kv-config-path", str(directory / "kvConfig.json"))
    process = await trio.lowlevel.open_process([*NAMESRV, *flags], stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        log = b""
        with trio.fail_after(DEADLINE_S):
            while b"serves at " not in log or not log.endswith(b"\n"):
                data = await process.stderr.receive_some()
                assert data, log
                log += data
        port = int(log.split(b"serves at 127.0.0.1:")[1].split()[0])
        yield process, Peer(await trio.open_tcp_stream("127.0.0.1", port))
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()


async def test_sigterm_stops_gracefully(tmp_path: Path) -> None:
    async with daemon(tmp_path) as (process, peer):
        await peer.register()
        process.terminate()
        with trio.fail_after(DEADLINE_S):
            assert await process.wait() == 0
        assert process.stderr is not None
        log = b"".join([data async for data in process.stderr])
        assert b"NameServer stopped" in log
        assert b"broker gone" not in log
        assert await peer.stream.receive_some() == b""


async def test_acknowledged_values_survive_kill_9(tmp_path: Path) -> None:
    for n in range(2):
        async with daemon(tmp_path) as (process, peer):
            answer = await peer.ask(GET_KVLIST_BY_NAMESPACE.code, {"namespace": "ns"})
            assert n == 0 or loads(answer.body) == {"table": {f"k{k}": "v" for k in range(n)}}
            ext = {"namespace": "ns", "key": f"k{n}", "value": "v"}
            assert (await peer.ask(PUT_KV_CONFIG.code, ext)).code == 0
            process.kill()
            await process.wait()


def test_systemd_hears_of_the_state_and_logrotate_may_rename_the_log(tmp_path: Path) -> None:
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(tmp_path / "notify"))
    told.settimeout(60)
    log = tmp_path / "log" / "namesrv.log"
    command = [*NAMESRV, "--listen-port", "0", "--bind-address", "127.0.0.1", "--kv-config-path", str(tmp_path / "kv")]
    process = subprocess.Popen(
        [*command, "--log-file", str(log), "--log-format", "json"],
        env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "600000000"},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with told, process:
        messages = [told.recv(1_000).decode()]
        while not messages[-1].startswith("READY=1\n"):
            messages.append(told.recv(1_000).decode())
        assert messages[-1].startswith("READY=1\nSTATUS=serves at 127.0.0.1:")
        log.rename(tmp_path / "old")
        process.terminate()
        while not messages[-1].startswith("STOPPING=1\n"):
            messages.append(told.recv(1_000).decode())
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    # The thread that writes may have been at it when the file was renamed.
    both = (tmp_path / "old").read_text() + log.read_text()
    assert '"logger": "skylark.namesrv.cli", "message": "NameServer serves at 127.0.0.1:' in both
    assert '"message": "NameServer stopped"' in log.read_text()
