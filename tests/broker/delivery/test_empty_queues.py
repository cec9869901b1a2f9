"""Reads of queues that never had a message: they make nothing, and say what an empty queue says."""

from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.cold_reads import ColdReads
from skylark.broker.delivery.filters import Filters
from skylark.broker.delivery.pull_handlers import Consumers, PullHandlers, PullWaits, ReadAdvice
from skylark.broker.replication.known_master import KnownMaster
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.groups import GET_CONSUME_STATS
from skylark.remoting.protocol.requests.offsets import (
    GET_EARLIEST_MSG_STORETIME,
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    QUERY_CONSUMER_OFFSET,
    SEARCH_OFFSET_BY_TIMESTAMP,
)
from skylark.remoting.protocol.requests.pulls import PULL_MESSAGE
from skylark.remoting.protocol.requests.query import QUERY_CONSUME_QUEUE
from skylark.remoting.protocol.requests.topics import GET_TOPIC_STATS_INFO, TopicConfig
from tests.broker.desk import Desk
from tests.broker.running import pull_request
from tests.broker.store.support import put
from tests.support.caller import Caller

MANY = 2_000
QUEUE = {"topic": "T", "queueId": 0}
GROUP = {"consumerGroup": "g", "topic": "T"}
NUMBERS = st.sampled_from([-1, 0, 1, 5, 2**62])
READS = st.one_of(
    st.builds(lambda offset, tags: pull_request("T", offset, subscription=tags), NUMBERS, st.sampled_from("*a")),
    st.builds(
        lambda time, boundary: Command(
            SEARCH_OFFSET_BY_TIMESTAMP.code, {**QUEUE, "timestamp": time, "boundaryType": boundary}
        ),
        NUMBERS,
        st.sampled_from(["LOWER", "UPPER"]),
    ),
    st.builds(
        lambda code: Command(code, dict(QUEUE)),
        st.sampled_from([GET_MAX_OFFSET.code, GET_MIN_OFFSET.code, GET_EARLIEST_MSG_STORETIME.code]),
    ),
    st.builds(
        lambda zero: Command(QUERY_CONSUMER_OFFSET.code, {**QUEUE, "consumerGroup": "g", "setZeroIfNotFound": zero}),
        st.booleans(),
    ),
    st.builds(
        lambda index, count: Command(QUERY_CONSUME_QUEUE.code, {**QUEUE, "index": index, "count": count}),
        NUMBERS,
        NUMBERS,
    ),
    st.just(Command(GET_TOPIC_STATS_INFO.code, {"topic": "T"})),
    st.just(Command(GET_CONSUME_STATS.code, dict(GROUP))),
)


class PullDesk(Desk):
    """As `Desk`, with pulls of a topic."""

    def __init__(self, queues: int = 1) -> None:
        super().__init__()
        meta = self.meta
        meta.topics.put(TopicConfig("T", queues, 1))
        pulls = PullHandlers(
            self.store, meta.metadata, Consumers(self.clients, Filters(), self.resets),
            PullWaits(self.held, ColdReads()), ReadAdvice(self.store, meta.options, self.role, KnownMaster(), 4_000),
            self.stats, meta.options,
        )  # fmt: skip
        self.handlers |= pulls.handlers()


@given(reads=st.lists(READS, max_size=5), consumed=st.sampled_from([None, 0, 3]))
def test_reads_of_a_queue_that_is_not_there_equal_those_of_an_empty_one(
    reads: list[Command], consumed: int | None
) -> None:
    async def answers(desk: PullDesk) -> list[Any]:
        if consumed is not None:
            desk.meta.offsets.commit("g", "T", 0, consumed)
        got = [await desk.ask(read.code, read.ext) for read in reads]
        return [(answer.code, answer.remark, answer.ext, bytes(answer.body)) for answer in got]

    async def run() -> None:
        absent, empty = PullDesk(), PullDesk()
        queue = empty.store.queues.get("T", 0)
        assert await answers(absent) == await answers(empty)
        assert list(absent.store.queues) == []
        assert list(empty.store.queues) == [queue]

    trio.run(run)


async def test_pulls_of_queues_without_messages_make_none() -> None:
    desk = PullDesk(MANY)
    channel = Caller().channel
    pull = desk.handlers[PULL_MESSAGE.code]
    for queue_id in range(MANY):
        answer = pull(channel, pull_request("T", 0, queue_id=queue_id))
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert pull(channel, pull_request("T", 0, queue_id=queue_id, wait_ms=15_000)) is None
    assert len(desk.held) == MANY
    assert list(desk.store.queues) == []
    desk.store.checkpoint(with_ends=True)
    assert [path for path in desk.meta.fs.paths() if "consumequeue" in path] == []
    desk.held.drop(channel)
    put(desk.store, "T", 7, b"first")
    assert len(desk.store.queues) == 1
