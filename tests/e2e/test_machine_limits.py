"""Daemons on a machine that gives them little: what they say, what they go on doing, and that they recover."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from scripts.daemons import BIN, Daemon, broker_daemon, namesrv_daemon, proxy_daemon
from skylark import Admin, Message, Producer, SendStatus
from skylark.mqcommon.message.queue import MessageQueue
from tests.support.bad_machine import BadMachine, use_memory, with_full_tmp, with_memory, with_open_files
from tests.support.daemons import SMALL, started
from tests.support.scrape import get
from tests.support.waiting import until

pytestmark = [pytest.mark.nightly, pytest.mark.process]

MIB = 1024 * 1024
TOPIC = "t"
HEALTH = ("--health-port", "0")
STARTS = {
    "namesrv": ("--listen-port", "0"),
    "broker": ("--listen-port", "0"),
    "mqproxy": ("--namesrv-addr", "127.0.0.1:1"),
    "mqconsole": ("--namesrvAddr", "127.0.0.1:1", "--listen-port", "0"),
}


def pages(daemon: Daemon) -> str:
    """The address of the daemon's health pages."""
    return daemon.logged.decode().partition("health at http://")[2].partition("/")[0]


async def doctor(nameserver: str) -> str:
    command = [str(BIN / "mqadmin"), "doctor", "-n", nameserver]
    done = await trio.to_thread.run_sync(lambda: subprocess.run(command, capture_output=True, text=True, check=False))
    return done.stdout


async def send(nameserver: str, number: int, **options: int) -> list[SendStatus]:
    async with Producer(nameserver, group="p", **options) as producer:
        return [(await producer.send(Message(TOPIC, str(each).encode()))).status for each in range(number)]


async def read(nameserver: str, topic: str = TOPIC) -> int:
    """How many messages the topic has."""
    async with Admin(nameserver) as admin:
        queues = [MessageQueue(topic, "a", queue) for queue in range(4)]
        return sum([await admin.max_offset(queue) for queue in queues])


@pytest.mark.parametrize("name", STARTS)
def test_a_daemon_that_may_open_too_few_files_says_so(name: str, tmp_path: Path) -> None:
    command = ["prlimit", "--nofile=48:48", "--", str(BIN / name), *STARTS[name]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        f"{name}: open files: limit=48: a daemon needs 64 at least; raise ulimit -n to 65536"
    )


async def test_with_few_open_files_clients_are_refused_and_the_others_served(tmp_path: Path) -> None:
    namesrv = with_open_files(namesrv_daemon(tmp_path), 256)
    broker = with_open_files(broker_daemon(tmp_path, "a", namesrv.addr, 0, *SMALL), 256)
    async with started(namesrv, broker):
        assert b"open files: limit=256: few; 128 connections are accepted" in namesrv.logged
        assert b"open files: limit=256 connections=128 queue_files=" in broker.logged
        assert await send(namesrv.addr, 100) == [SendStatus.SEND_OK] * 100
        crowd: list[trio.SocketStream] = []
        try:
            for _ in range(200):
                crowd.append(await trio.open_tcp_stream("127.0.0.1", broker.port))
            await until(lambda: b"connections refused: 128 are open (see maxConnections)" in broker.logged)
        finally:
            for stream in crowd:
                await stream.aclose()
        assert await send(namesrv.addr, 100) == [SendStatus.SEND_OK] * 100
        assert await read(namesrv.addr) == 200
        assert "may have 256 open files" in await doctor(namesrv.addr)


async def test_the_memory_limit_of_a_container_is_told(tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    groups = tmp_path / "groups"
    broker = with_memory(broker_daemon(tmp_path, "a", namesrv.addr, 0, *SMALL), groups, 400 * MIB)
    async with started(namesrv, broker):
        assert b"memory: limit=400 MiB (/sys/fs/cgroup)" in broker.logged
        assert b"maxBufferedBytes=536870912 is lowered to 209715200" in broker.logged
        assert "uses 0 % of the memory that it may have, 400 MiB" in await doctor(namesrv.addr)
        use_memory(groups, 380 * MIB)
        await until(lambda: b"memory is short: 95 % of 400 MiB (/sys/fs/cgroup) are used" in broker.logged)
        assert "uses 95 % of the memory that it may have, 400 MiB" in await doctor(namesrv.addr)
        use_memory(groups, 100 * MIB)
        await until(lambda: b"memory is enough again: 25 %" in broker.logged)
        assert await send(namesrv.addr, 10) == [SendStatus.SEND_OK] * 10


async def test_a_disk_that_hangs_is_told_and_sends_go_on_when_it_works_again(tmp_path: Path) -> None:
    machine = BadMachine(tmp_path)
    namesrv = namesrv_daemon(tmp_path)
    options = (*SMALL, *HEALTH, "--flush-disk-type", "SYNC_FLUSH", "--sync-flush-timeout", "2500")
    broker = machine.holding(broker_daemon(tmp_path, "a", namesrv.addr, 0, *options))
    async with started(namesrv, broker):
        assert await send(namesrv.addr, 20) == [SendStatus.SEND_OK] * 20

        async def is_ready() -> bool:
            return await get(pages(broker), "/readyz") == (200, "ok\n")

        await until(is_ready, "the broker is ready")
        machine.set(sync_s=3_600)
        assert await send(namesrv.addr, 1, retries=0, accept_weaker=True) == [SendStatus.FLUSH_DISK_TIMEOUT]
        assert b"flush took longer than syncFlushTimeout" in broker.logged
        await until(lambda: b"the disk is slow: an fsync of the commit log takes more than 1 s" in broker.logged)

        async def is_unready() -> bool:
            code, text = await get(pages(broker), "/readyz")
            return code == 503 and text.startswith("the disk has not finished an fsync for ")

        await until(is_unready, "the broker is not ready")
        assert (await get(pages(broker), "/healthz"))[0] == 200
        assert "its slowest fsync of the last minutes took" in await doctor(namesrv.addr)
        assert await read(namesrv.addr) == 21, "messages are read"
        # The fsync that hangs ends by itself only after an hour of this test's disk; a killed broker loses nothing.
        machine.set()
        broker.kill()
        broker.start()
        await until(broker.ready, "it serves", 60)
        await until(lambda: b"broker registered" in namesrv.logged)
        assert await send(namesrv.addr, 20) == [SendStatus.SEND_OK] * 20
        assert await read(namesrv.addr) == 41


async def test_a_slow_disk_loses_nothing_and_is_told_when_it_is_over(tmp_path: Path) -> None:
    machine = BadMachine(tmp_path)
    namesrv = namesrv_daemon(tmp_path)
    broker = machine.holding(broker_daemon(tmp_path, "a", namesrv.addr, 0, *SMALL, "--flush-disk-type", "SYNC_FLUSH"))
    async with started(namesrv, broker):
        await send(namesrv.addr, 1)
        machine.set(sync_s=2)
        assert await send(namesrv.addr, 3, send_timeout_ms=30_000) == [SendStatus.SEND_OK] * 3
        machine.set()
        await send(namesrv.addr, 1)
        assert broker.logged.count(b"the disk is slow") >= 1
        assert b"the fsync of the commit log has ended after 2." in broker.logged
        assert await read(namesrv.addr) == 5


@pytest.fixture
def beside_tmp() -> Iterator[Path]:
    """A directory that is not below /tmp."""
    home = Path(tempfile.mkdtemp(dir="/var/tmp"))
    yield home
    shutil.rmtree(home)


async def test_no_daemon_needs_room_in_tmp(beside_tmp: Path) -> None:
    home = beside_tmp
    namesrv = with_full_tmp(namesrv_daemon(home))
    broker = with_full_tmp(broker_daemon(home, "a", namesrv.addr, 0, *SMALL))
    # Without a certificate the proxy makes one.
    proxy = with_full_tmp(proxy_daemon(home, "proxy", namesrv.addr))
    async with started(namesrv, broker, proxy):
        assert await send(namesrv.addr, 20) == [SendStatus.SEND_OK] * 20
    # Python takes /var/tmp then.
    flags = [f"--{name}port=0" for name in ("", "broker-", "grpc-", "console-")]
    dev = with_full_tmp(Daemon("dev", [str(BIN / "skylark"), "dev", *flags], 0, home / "dev.log"))
    dev.start()
    await until(lambda: b"Skylark is ready." in dev.logged or not dev.runs)
    dev.terminate()
    dev.wait_stopped()
    assert b"Files       /var/tmp/skylark-dev-" in dev.logged


async def test_a_clock_that_is_set_ends_no_registration_and_no_message_is_early(tmp_path: Path) -> None:
    machine = BadMachine(tmp_path)
    namesrv = machine.holding(namesrv_daemon(tmp_path))
    broker = machine.holding(broker_daemon(tmp_path, "a", namesrv.addr, 0, *SMALL))
    proxy = machine.holding(proxy_daemon(tmp_path, "proxy", namesrv.addr))
    async with started(namesrv, broker, proxy):
        await send(namesrv.addr, 10)
        async with Producer(namesrv.addr, group="p") as producer:
            await producer.send(Message("late", b"", delay_level=18))  # two hours
        for clock_s, line in ((3 * 3_600, b"the clock went forward by 10"), (0, b"the clock went back by 10")):
            machine.set(clock_s=clock_s)
            await until(lambda line=line: line in broker.logged, "the step is told")
            assert await send(namesrv.addr, 10) == [SendStatus.SEND_OK] * 10
        assert await read(namesrv.addr) == 30
        assert "its clock went back 1 times since the start" in await doctor(namesrv.addr)
        assert b"broker gone" not in namesrv.logged
        assert all(daemon.runs for daemon in (namesrv, broker, proxy))
        assert await read(namesrv.addr, "late") == 0
