"""Recorded connections between RocketMQ brokers, replayed over memory transports: our slave, then our master."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest
import trio

from skylark.broker.replication.autoswitch.epochs import Epoch
from skylark.broker.replication.autoswitch.frames import MasterReader, SlaveHello, SlaveReader, encode_slave_hello
from skylark.broker.replication.session import MasterTarget
from skylark.remoting.net.transport import Transport
from tests.broker.replication.autoswitch.sets import Member, Wires
from tests.broker.replication.autoswitch.test_frames import CONNECTIONS, bytes_of
from tests.broker.replication.test_replica import log_bytes
from tests.broker.store.support import SMALL
from tests.support.memory_transport import SERVER
from tests.support.waiting import DEADLINE_S, until

OPTIONS = replace(SMALL, commitlog_segment_bytes=8 << 20, consumequeue_segment_bytes=6000 * 20, index_capacity=20_000)
# As they followed each other; the log is the same whoever copies it.
IN_ORDER = ["ha-1-06", "ha-1-09", "ha-2-14", "ha-1-22"]
HELLO_BYTES, ACK_BYTES = 16, 12


class Recording:
    """One connection: what both said, and the log that passed."""

    def __init__(self, connection: str) -> None:
        self.of_slave, self.of_master = bytes_of(connection, "c2s"), bytes_of(connection, "s2c")
        reader = MasterReader()
        pieces = reader.receive(self.of_master)
        self.log = b"".join(piece.data for piece in pieces)
        self.confirmed = max(piece.confirm_offset for piece in pieces)
        assert reader.hello is not None
        self.hello = reader.hello
        self.hello_bytes = 20 + 12 * len(self.hello.epochs)
        acks = SlaveReader()
        self.acks = acks.receive(self.of_slave)
        assert acks.hello is not None
        self.slave = acks.hello
        self.begin = self.acks[0]
        self.end = self.begin + len(self.log)


@asynccontextmanager
async def java_master(network: Wires, recording: Recording, reports: list[int]) -> AsyncIterator[MasterTarget]:
    """Says what was recorded: its hello to the slave's, the rest after the first report."""

    async def converse(stream: Transport) -> None:
        reader, told = SlaveReader(), 0
        async with stream:
            while data := await stream.receive(4096):
                reports.extend(reader.receive(data))
                if reader.hello and not told:
                    told = recording.hello_bytes
                    await stream.send_all(recording.of_master[:told])
                if reports and told == recording.hello_bytes:
                    told = len(recording.of_master)
                    await stream.send_all(recording.of_master[recording.hello_bytes :])

    listener = network.listen()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_listeners, converse, [listener]))
        yield MasterTarget(SERVER, hello=False)
        nursery.cancel_scope.cancel()
    await listener.aclose()


async def follow(member: Member, recording: Recording) -> list[int]:
    """Let it copy what the recorded master sent; what it reported."""
    network, reports = Wires(), list[int]()
    async with (
        java_master(network, recording, reports) as target,
        member.following(target, network.open, recording.slave.broker_id),
    ):
        await until(lambda: recording.end in reports, f"the log up to {recording.end}")
        await until(lambda: member.store.log.end == recording.end, "its queues")
    return reports


async def test_our_slave_follows_java_masters_and_cuts_what_the_second_lacks() -> None:
    member = Member(options=OPTIONS)
    for connection in IN_ORDER:
        recording = Recording(connection)
        if connection == "ha-2-14":
            # As the recorded one: it was the master, and nobody copied its last 200 messages.
            parted_at = member.store.log.end
            for number in range(200):
                member.put(b"lost %d" % number)
            assert member.store.log.end > parted_at == recording.begin
        reports = await follow(member, recording)
        assert reports[0] == recording.begin and reports[-1] == recording.acks[-1]
        assert log_bytes(member.store, recording.begin, recording.end) == recording.log
        assert member.confirmed == recording.confirmed
    assert member.cuts == [parted_at]
    assert list(member.epochs.now) == [Epoch(1, 0), Epoch(2, 886840)]


@pytest.mark.parametrize("connection", CONNECTIONS)
async def test_our_master_sends_a_java_slave_what_its_own_sent(connection: str) -> None:
    member, wanted = Member(options=OPTIONS), Recording(connection)
    for earlier in IN_ORDER[: IN_ORDER.index(connection) + 1]:
        await follow(member, Recording(earlier))
    await member.epochs.begin(wanted.hello.epoch)
    network = Wires()
    async with member.serving(network):
        stream = await network.open(*SERVER.split(":"))  # type: ignore[arg-type]
        assert wanted.of_slave[:HELLO_BYTES] == encode_slave_hello(wanted.slave)
        await stream.send_all(wanted.of_slave[: HELLO_BYTES + ACK_BYTES])
        reader, sent = MasterReader(), b""
        with trio.fail_after(DEADLINE_S):
            while reader.hello is None or wanted.begin + len(sent) < wanted.end:
                for piece in reader.receive(await stream.receive(1 << 20)):
                    sent += piece.data
        assert sent == wanted.log
        assert reader.hello.epochs == wanted.hello.epochs
        await stream.send_all(wanted.of_slave[HELLO_BYTES + ACK_BYTES :])
        broker_id = wanted.slave.broker_id
        await until(lambda: member.copies.ends.get(broker_id) == wanted.acks[-1], "the last report")
        assert member.acks.reached(1) == wanted.acks[-1]
    assert wanted.slave == SlaveHello(False, False, broker_id)
