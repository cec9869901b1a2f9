"""A set whose master is elected, under load: what its readers may have seen, and links that go through the test."""

import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Generic

import trio

from scripts.controller_set import NAME, AnySet, ControllerSet, running
from scripts.daemons import Daemon, ReservedPort, reserve
from skylark import Admin, Producer, PullConsumer
from skylark.mqcommon.errors import RemotingError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.codes import ResponseCode
from tests.broker.running import pull_request
from tests.broker.test_send_pull import messages
from tests.e2e.load import Load, check_acknowledged, check_order, follow, stored
from tests.support.daemons import SMALL
from tests.support.links import Link
from tests.support.rounds import report
from tests.support.waiting import until

TOPIC = "switched"
QUEUES = 2
SENDERS = 8
# Sends that are acknowledged before and after each fault.
FEW = 30
# A try gets a third of the timeout: a send to a frozen broker is tried elsewhere after this third.
SEND_TIMEOUT_MS = 6_000
PULL_WAIT_MS, PULL_TIMEOUT_MS = 1_000, 3_000
# The pause of senders, and of readers that found nothing. Without a pause the load would take the processor from the
# daemons that are tested.
PAUSE_S = 0.05
# A silent master is replaced soon. A busy machine makes more switches than the test asked for, which is no harm.
QUICK = (
    *SMALL,
    *("--broker-heartbeat-interval", "300", "--controller-heart-beat-timeout-mills", "1500"),
    *("--sync-broker-metadata-period", "1000", "--ha-send-heartbeat-interval", "500"),
)
NOTHING_LOST = (*QUICK, "--all-ack-in-sync-state-set", "true", "--min-in-sync-replicas", "2")


class LinkedSet(ControllerSet):
    """Each broker has links of its own to the Controllers, and one through which the others copy its log."""

    def __init__(self, home: Path, options: Sequence[str], brokers: int = 3) -> None:
        super().__init__(home, brokers, options)
        self.to_controllers = [[Link(each.port) for each in self.controllers] for _ in self.brokers]
        # At the same port of another address of loopback.
        self.to_slaves = [Link(port, f"127.0.0.{10 + n}", port) for n, port in enumerate(self.ha_ports)]
        # The ports of `open_more_ports`.
        self.fast_ports: list[ReservedPort] = []
        self.http_ports: list[ReservedPort] = []

    def open_more_ports(self) -> None:
        """Let brokers open their fast ports, too, and all daemons ports for metrics. To be called before the start."""
        for daemon in (self.namesrv, *self.brokers):
            self.http_ports.append(reserve())
            daemon.command = [
                *daemon.command,
                "--metrics-exporter-type", "PROM", "--metrics-prom-exporter-port", str(self.http_ports[-1].number),
            ]  # fmt: skip
        for broker in self.brokers:
            self.fast_ports.append(reserve())
            broker.command = [*broker.command, "--fast-listen-port", str(self.fast_ports[-1].number)]

    async def open(self, nursery: trio.Nursery) -> None:
        """Before the brokers start."""
        for broker, links, to_slaves in zip(self.brokers, self.to_controllers, self.to_slaves, strict=True):
            for link in (*links, to_slaves):
                await nursery.start(link.run)
            addrs = ";".join(link.addr for link in links)
            ip2 = to_slaves.addr.partition(":")[0]
            broker.command = [*broker.command, "--controller-addr", addrs, "--broker-ip2", ip2]

    def links_of(self, broker: Daemon) -> list[Link]:
        return self.to_controllers[self.brokers.index(broker)]

    def asks_through_links(self, broker: Daemon) -> bool:
        """Whether its leader is one of its links: the Controllers know each other by their own addresses."""
        leaders = re.findall(rb"Controller (\S+) leads", broker.logged)
        return bool(leaders) and leaders[-1].decode() in {link.addr for link in self.links_of(broker)}

    def slaves_link_of(self, broker: Daemon) -> Link:
        return self.to_slaves[self.brokers.index(broker)]


class Readers:
    """Clients that read while masters change: with the SDK, and from each broker, whatever its role at the time."""

    def __init__(self, at: ControllerSet) -> None:
        self._at = at
        self.read: dict[MessageQueue, list[bytes]] = {MessageQueue(TOPIC, NAME, number): [] for number in range(QUEUES)}
        self.seen: dict[tuple[MessageQueue, int], bytes] = {}
        self.seen_of: dict[str, int] = {broker.name: 0 for broker in at.brokers}

    async def run(self, consumer: PullConsumer, client: RemotingClient) -> None:
        async with trio.open_nursery() as nursery:
            for queue, read in self.read.items():
                nursery.start_soon(follow, consumer, queue, read)
                for broker in self._at.brokers:
                    nursery.start_soon(self._watch, client, broker, queue)

    async def _watch(self, client: RemotingClient, broker: Daemon, queue: MessageQueue) -> None:
        """Read one queue of one broker, and never go back."""
        offset = 0
        while True:
            request = pull_request(TOPIC, offset, queue_id=queue.queue_id, wait_ms=PULL_WAIT_MS)
            try:
                answer = await client.invoke(broker.addr, request, PULL_TIMEOUT_MS)
            except RemotingError:
                await trio.sleep(PAUSE_S)
                continue
            if answer.code != ResponseCode.SUCCESS:
                await trio.sleep(PAUSE_S)
                continue
            for message in messages(answer):
                assert message.queue_offset == offset, f"{broker.name} has a gap in {queue} at {offset}"
                before = self.seen.setdefault((queue, offset), message.body)
                assert before == message.body, f"{broker.name} showed {message.body!r} at {offset}, not {before!r}"
                offset += 1
                self.seen_of[broker.name] += 1

    def check(self, found: dict[MessageQueue, list[bytes]]) -> None:
        """All that was seen is in the log, at the same place."""
        wrong = {place: body for place, body in self.seen.items() if found[place[0]][place[1] : place[1] + 1] != [body]}
        report(wrong=len(wrong))
        assert wrong == {}
        assert self.read == found


class Switching(Generic[AnySet]):
    """A running set with its load and its readers."""

    def __init__(self, at: AnySet, admin: Admin, load: Load, readers: Readers) -> None:
        self.at = at
        self.admin = admin
        self.load = load
        self.readers = readers

    def say_failures(self) -> None:
        """Why sends failed: there is time for all of them only while the machine is not too busy."""
        for text, count in Counter(str(error) for error in self.load.failures).most_common(5):
            sys.stdout.write(f"{count} sends failed: {text}\n")

    async def check(self) -> None:
        """After the load: nothing acknowledged is lost, all logs are equal, and readers saw nothing else."""
        await self.at.until_in_sync(self.admin)
        report(unavailable_s=self.load.longest_pause_s)
        await until_logs_are_equal(self.at, self.admin)
        found = await stored(self.at.nameserver, TOPIC)
        check_acknowledged(self.load.acked, found)
        twice = check_order(found)
        readers = self.readers

        def all_is_read() -> bool:
            return all(len(readers.read[queue]) >= len(found[queue]) for queue in found)

        await until(all_is_read, "all of it is read")
        readers.check(found)
        assert all(readers.seen_of.values()), readers.seen_of
        sys.stdout.write(
            f"{len(self.load.acked)} acknowledged, 0 lost, {twice} stored twice by a second try,"
            f" {len(self.load.failures)} failed; tails cut: {len(self.at.cut_tails())};"
            f" worst send {self.load.worst_s * 1000:.0f} ms\n"
        )


async def until_logs_are_equal(at: ControllerSet, admin: Admin) -> int:
    """Without sends, wait until all logs have the same bytes and the same end; returns the end."""
    ends: set[str] = set()

    async def same_end() -> bool:
        ends.clear()
        for broker in at.brokers:
            ends.add((await admin.broker_runtime_info(broker.addr))["commitLogMaxOffset"])
        return len(ends) == 1

    await until(same_end, "all logs end at the same place")
    end = int(ends.pop())
    first, *others = (log_files(at.store_of(broker)) for broker in at.brokers)
    for other in others:
        for start, path in first.items():
            if start < end:
                assert start in other, f"{path} is missing among {list(map(str, other.values()))}"
                ours, theirs = path.read_bytes()[: end - start], other[start].read_bytes()[: end - start]
                assert ours == theirs, f"{path} and {other[start]} differ"
    return end


def log_files(store: Path) -> dict[int, Path]:
    """The files of a commit log by the offset at which they begin."""
    return {int(path.name): path for path in sorted((store / "commitlog").iterdir()) if path.name.isdecimal()}


@asynccontextmanager
async def switching(
    home: Path, options: Sequence[str] = NOTHING_LOST, *, all_ports: bool = False
) -> AsyncIterator[Switching[LinkedSet]]:
    """Three brokers in sync, under load until the block ends; then all is checked. ``all_ports``: `open_more_ports`."""
    at = LinkedSet(home, options)
    if all_ports:
        at.open_more_ports()
    async with trio.open_nursery() as links:
        await at.open(links)
        async with under_load(at) as made:
            yield made
        links.cancel_scope.cancel()


@asynccontextmanager
async def under_load(at: AnySet, *, is_stopped: bool = False) -> AsyncIterator[Switching[AnySet]]:
    """Run the set, with all brokers in sync, under load until the block ends; then check everything.

    ``is_stopped``: in the end daemons are stopped gracefully, not killed.
    """
    async with running(at), Admin(at.nameserver) as admin:
        await at.until_in_sync(admin)
        await at.make_topic(admin, TOPIC, QUEUES)
        async with (
            Producer(at.nameserver, send_timeout_ms=SEND_TIMEOUT_MS) as producer,
            PullConsumer(at.nameserver) as consumer,
            open_client() as client,
            trio.open_nursery() as reading,
        ):
            made = Switching(at, admin, Load(producer, TOPIC, pause_s=PAUSE_S), Readers(at))
            reading.start_soon(made.readers.run, consumer, client)
            async with trio.open_nursery() as senders:
                for sender in range(SENDERS):
                    senders.start_soon(made.load.send, sender)
                try:
                    yield made
                finally:
                    made.say_failures()
                made.load.stopping = True
            await made.check()
            reading.cancel_scope.cancel()
        if is_stopped:
            assert await trio.to_thread.run_sync(at.stop) == []
