"""Two brokers of one conf file under their supervisor: one dies and comes back, and all stop together."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import trio

from scripts.daemons import Daemon, ReservedPort, broker_daemon, free_port, namesrv_daemon
from skylark import Admin, ConsumeFrom, Message, MessageExt, Producer, PushConsumer, TopicConfig
from skylark.broker.instances import STRIDE
from tests.support.daemons import SMALL, start
from tests.support.waiting import until

TOPIC = TopicConfig("t", 4, 4)


def first_of_two() -> int:
    """A port so that no port of two instances is in use."""
    while True:
        port = free_port()
        with suppress(OSError):
            _ = [ReservedPort(port + STRIDE + more) for more in (0, 1)]
            return port


def pids(supervisor: Daemon) -> list[int]:
    # A process belongs to the thread that started it.
    listed = [path.read_text() for path in Path(f"/proc/{supervisor.pid}/task").glob("*/children")]
    return [int(text) for text in " ".join(listed).split()]


def files_of_stores(home: Path, name: str) -> list[Path]:
    return list(home.glob(f"big/instance-*/{name}"))


async def page(port: int, path: str) -> str:
    def read() -> str:
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                return str(answer.read().decode())
        except HTTPError as error:
            return error.read().decode()

    return await trio.to_thread.run_sync(read)


async def test_two_instances(tmp_path: Path) -> None:
    namesrv, port, pages = namesrv_daemon(tmp_path), first_of_two(), free_port()
    options = (
        *SMALL, "--broker-instances", "2",
        "--metrics-exporter-type", "PROM", "--metrics-prom-exporter-port", str(pages),
    )  # fmt: skip
    brokers = broker_daemon(tmp_path, "big", namesrv.addr, port, *options)
    found: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        found.append(message.body)

    async def registered() -> bool:
        return {*(await admin.cluster_info()).broker_addr_table} == {"big-0", "big-1"}

    async def ready() -> bool:
        return (await page(pages, "/readyz")).strip() == "ok"

    async def spread() -> bool:
        async with Producer(namesrv.addr) as producer:
            results = [await producer.send(Message("t", b"%d" % number)) for number in range(8)]
        return {result.queue.broker_name for result in results} == {"big-0", "big-1"}

    await start(namesrv)
    brokers.start()
    try:
        await until(lambda: b"2 brokers serve" in brokers.logged, "both serve")
        async with Admin(namesrv.addr) as admin:
            await until(registered)
            for shift in (0, STRIDE):
                await admin.create_topic(f"127.0.0.1:{port + shift}", TOPIC)
            await until(spread, "both get messages")
            text = await page(pages, "/metrics")
            assert text.count('skylark_instance_up{instance="big-') == 2
            assert text.count("# TYPE rocketmq_messages_in_total") == 1
            assert 'node_id="big-0"' in text and 'node_id="big-1"' in text
            os.kill(pids(brokers)[0], signal.SIGKILL)
            await until(lambda: brokers.logged.count(b" serves at ") == 3, "it was started again")
            await until(ready)
            await until(registered)
        brokers.terminate()
        await trio.to_thread.run_sync(brokers.wait_stopped)
        assert brokers.exit_code == 0
        # What the instances have is there after a restart; when their supervisor is killed, they stop, too.
        brokers.start()
        await until(lambda: b"2 brokers serve" in brokers.logged)
        async with PushConsumer(
            namesrv.addr, group="g", subscriptions={"t": "*"}, handler=handle, consume_from=ConsumeFrom.FIRST_OFFSET
        ):
            await until(lambda: {b"%d" % number for number in range(8)} <= set(found))
        left = pids(brokers)
        brokers.kill()
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), "the instances have stopped")
        # Gracefully: a store that was not closed has this file, too.
        assert files_of_stores(tmp_path, "abort") == []
        assert len(files_of_stores(tmp_path, "checkpoint")) == 2
    finally:
        for daemon in (brokers, namesrv):
            if daemon.runs:
                daemon.kill()
