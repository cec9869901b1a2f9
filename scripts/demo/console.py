"""A cluster with a group that lags, and the console beside it, until Ctrl-C."""

import signal
import sys
from pathlib import Path

import trio

from scripts.daemons import HOST, Daemon, broker_daemon, namesrv_daemon, reserve_if_free, serving
from scripts.demo.options import Options
from skylark import Admin, Message, Producer, PullConsumer
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.testing.daemons import SMALL

TOPIC, GROUP = "orders", "shop"
SENDS, CONSUMED = 1_000, 400
PAUSE_S = 0.1
# Small files, so that the demo starts at once.
FILES = tuple(
    part
    for key, value in (
        ("--mapped-file-size-commit-log", SMALL["mappedFileSizeCommitLog"]),
        ("--mapped-file-size-consume-queue", SMALL["mappedFileSizeConsumeQueue"]),
        ("--max-hash-slot-num", SMALL["maxHashSlotNum"]),
        ("--max-index-num", SMALL["maxIndexNum"]),
    )
    for part in (key, value)
)


class ConsoleDemo:
    """One run, with its data in ``home``."""

    def __init__(self, options: Options, home: Path) -> None:
        self._namesrv = namesrv_daemon(home, "namesrv", options.namesrv_ports[0])
        self._brokers = [
            broker_daemon(home, name, self._namesrv.addr, port, *FILES)
            for name, port in zip(("broker-a", "broker-b"), options.broker_ports, strict=True)
        ]
        port, reservation = reserve_if_free(options.console_port)
        command = [
            sys.executable,
            "-m",
            "skylark.mqconsole",
            "-n",
            self._namesrv.addr,
            "--listen-port",
            str(port),
            "--poll-interval",
            "2",
        ]
        self._console = Daemon("mqconsole", command, port, home / "mqconsole.log", reservation)

    def run(self) -> None:
        """Start everything, send some messages a second, and stop at Ctrl-C."""
        with serving(self._namesrv, *self._brokers, self._console):
            print(f"a NameServer serves at {self._namesrv.addr}, two masters at {self._addresses()}")
            print(f"\n  the console:  http://{HOST}:{self._console.port}\n")
            print(f"Group {GROUP} lags: open Groups, then {GROUP}, to see why. Ctrl-C stops everything.", flush=True)
            try:
                trio.run(self._traffic)
            except* KeyboardInterrupt:
                # A second Ctrl-C must not interrupt the graceful stop.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("\neverything is stopped")

    def _addresses(self) -> str:
        return " and ".join(broker.addr for broker in self._brokers)

    async def _traffic(self) -> None:
        """Orders come in all the time; the group has consumed some, and has no consumer any more."""
        async with Admin(self._namesrv.addr) as admin:
            await self._until_registered(admin)
        async with Producer(self._namesrv.addr, group="shop-front", trace=True) as producer:
            for number in range(SENDS):
                await producer.send(_order(number))
            async with PullConsumer(self._namesrv.addr, group=GROUP) as consumer:
                queues = await consumer.message_queues(TOPIC)
                for queue in queues:
                    await consumer.commit_offset(queue, CONSUMED // len(queues))
            number = SENDS
            while True:
                await producer.send(_order(number))
                number += 1
                await trio.sleep(PAUSE_S)

    async def _until_registered(self, admin: Admin) -> None:
        while True:
            if len((await admin.cluster_info()).broker_addr_table) == len(self._brokers):
                break
            await trio.sleep(PAUSE_S)
        for broker in self._brokers:
            await admin.create_topic(broker.addr, TopicConfig(TOPIC, 4, 4))


def _order(number: int) -> Message:
    body = f'{{"order": {number}, "item": "tea", "price": {2 + number % 7}.50}}'
    return Message(TOPIC, body.encode(), tags="new", keys=f"order-{number}")
