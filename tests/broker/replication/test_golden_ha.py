"""A link recorded between a master and a slave of RocketMQ 4.9.8: ours say and do the same, on either side."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from skylark.broker.replication.hello import LinkTerms
from skylark.broker.replication.link import MasterLink, SlaveLink
from skylark.broker.replication.replica import Replica
from tests.broker.replication.links import Log
from tests.broker.store.support import SMALL, open_store, read_all
from tests.support.memory_files import MemoryFiles

RECORDED = Path(__file__).parents[2] / "golden" / "ha" / "rocketmq-4.9.8.jsonl"
# A RocketMQ slave reports for the first time when a heartbeat is due.
CONNECTED_BEFORE_S = 5.0


class Read(NamedTuple):
    """The bytes that one side read at once."""

    at: float
    of_slave: bool
    data: bytes


def recorded() -> list[Read]:
    rows = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    assert {row["conn"] for row in rows} == {1}
    return [Read(row["t"], row["dir"] == "slave>master", bytes.fromhex(row["hex"])) for row in rows]


def master_log() -> Log:
    """The log of the recorded master, from its stream: two heartbeat headers and the header of one frame around it."""
    stream = b"".join(read.data for read in recorded() if not read.of_slave)
    size = int.from_bytes(stream[20:24], "big")
    return Log(stream[24 : 24 + size])


def test_our_slave_reaches_the_same_end_and_reports_the_same() -> None:
    store = open_store(MemoryFiles(), options=replace(SMALL, commitlog_segment_bytes=1 << 20))
    replica = Replica(store)
    reads = recorded()
    link = SlaveLink(LinkTerms(), reads[0].at, start=0, end=0)
    for read in reads:
        if read.of_slave:
            link.tick(read.at)
            assert link.take_output() == read.data
            continue
        for piece in link.receive(read.data, read.at):
            if replica.is_empty:
                replica.begin_at(piece.offset)
            assert replica.append(piece.data) == len(piece.data)
        link.report(replica.raw_end, read.at)
    assert replica.build(1000) and not replica.behind
    log = master_log()
    assert store.log.end == log.end == 3446
    assert store.log.read(0, log.end) == log.data
    queues = {(queue.topic, queue.queue_id): queue.next_offset - queue.min_offset for queue in store.queues}
    found = {place: read_all(store, *place) for place in queues}
    assert {place: len(records) for place, records in found.items()} == queues
    assert sum(queues.values()) == 14
    assert [record.body for record in found["WireTopic", 3]] == [b"batch0", b"batch1", b"batch2"]
    first = found["WireTopic", 2][0]
    assert (first.body, first.queue_offset, first.physical_offset) == (b"hello wire", 0, 0)
    store.close()


def test_our_master_sends_what_the_recorded_one_sent() -> None:
    log = master_log()
    reads = recorded()
    link = MasterLink(
        LinkTerms(), lambda: log.bounds()._replace(file_bytes=1 << 30), b"", reads[0].at - CONNECTED_BEFORE_S
    )
    for read in reads:
        if read.of_slave:
            link.receive(read.data, read.at)
            continue
        sent = b""
        while piece := link.next_range(read.at):
            sent += piece.header + log.read(piece.offset, piece.size)
        assert sent == read.data
    assert link.acked == log.end
