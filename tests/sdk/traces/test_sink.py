"""Sinks of traces: documents, repeated writes, and what is lost."""

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from skylark import ConsumeFrom, JsonLinesSink, Producer, PullConsumer, PushConsumer, TransactionProducer, aio, blocking
from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.message.message import Message
from skylark.sdk.testing import Cluster
from skylark.sdk.traces.entries import ConsumedMessage, Consuming
from skylark.sdk.traces.records import SUB_BEFORE
from skylark.sdk.traces.sink import RETRY_FOR_S, Document, NotTaken, RecordsLost, SinkWriter, documents_of
from tests.support.waiting import DEADLINE_S

IDS = ["M1", "M2", "M3"]


def message(*ids: str) -> Message:
    lines = Consuming([ConsumedMessage(each, "k", 2, "r") for each in ids], "g", "R", 1_000).lines()
    return Message("trace", b"".join(lines.records))


class Sink:
    """Does what ``plan`` says, an item each time; then it stores all."""

    def __init__(self, *plan: Exception) -> None:
        self.plan = list(plan)
        self.calls: list[list[str]] = []
        self.stored: list[str] = []
        self.threads: set[int] = set()

    def write(self, documents: Sequence[Document]) -> None:
        self.threads.add(threading.get_ident())
        self.calls.append([document["msgId"] for document in documents])
        if self.plan:
            raise self.plan.pop(0)
        self.stored += self.calls[-1]


def test_a_document_has_what_the_record_says() -> None:
    (document,) = documents_of(message("M1").body, "10.0.0.1@7")
    assert document == {
        "time": "1970-01-01T00:00:01.000Z",
        "type": SUB_BEFORE,
        "msgId": "M1",
        "timestampMs": 1_000,
        "region": "r",
        "group": "g",
        "keys": "k",
        "requestId": "R",
        "retryTimes": 2,
        "clientId": "10.0.0.1@7",
    }


async def test_a_sink_is_called_in_a_thread_and_again_when_it_fails(autojump_clock: MockClock) -> None:
    sink = Sink(OSError("full"), RuntimeError("any"))
    await SinkWriter(sink, lambda: "c").send(message(*IDS))
    assert (sink.calls, sink.stored) == ([IDS] * 3, IDS)
    assert threading.get_ident() not in sink.threads


async def test_what_a_sink_did_not_take_is_given_to_it_again_and_the_rest_is_counted(autojump_clock: MockClock) -> None:
    documents = documents_of(message(*IDS).body, "c")
    sink = Sink(NotTaken("busy", documents[1:], 0), NotTaken("bad", documents[2:], 1))
    with pytest.raises(RecordsLost, match="bad") as lost:
        await SinkWriter(sink, lambda: "c").send(message(*IDS))
    assert lost.value.count == 1
    assert (sink.calls, sink.stored) == ([IDS, IDS[1:], IDS[2:]], IDS[2:])


async def test_a_sink_that_is_away_for_too_long_loses_what_it_was_given(autojump_clock: MockClock) -> None:
    class Away:
        def write(self, documents: Sequence[Document]) -> None:
            raise ConnectionRefusedError("nobody listens")

    began = trio.current_time()
    with pytest.raises(RecordsLost, match="nobody listens") as lost:
        await SinkWriter(Away(), lambda: "c").send(message(*IDS))
    assert lost.value.count == 3
    assert RETRY_FOR_S / 2 < trio.current_time() - began <= RETRY_FOR_S


def test_lines_of_json_in_files_of_bounded_size(tmp_path: Path) -> None:
    sink = JsonLinesSink(str(tmp_path / "traces" / "t.jsonl"), max_bytes=60, keep=1)
    for each in IDS:
        sink.write([{"msgId": each, "keys": "\n"}])
    sink.close()
    names = {file.name for file in (tmp_path / "traces").iterdir()}
    assert names == {"t.jsonl", "t.jsonl.1"}
    (line,) = (tmp_path / "traces" / "t.jsonl").read_text().splitlines()
    assert json.loads(line)["msgId"] == "M3"
    sink.write([{"msgId": "M4"}])
    sink.close()


@pytest.mark.parametrize("kind", [Producer, PullConsumer])
def test_mistakes_are_found_in_the_constructor(kind: type[Producer] | type[PullConsumer], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="trace must be True, False or a sink with a method write"):
        kind("127.0.0.1:1", trace="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="not both"):
        kind("127.0.0.1:1", trace=JsonLinesSink(str(tmp_path / "x")), trace_topic="T")


def test_all_clients_that_trace_take_a_sink(tmp_path: Path) -> None:
    sink = JsonLinesSink(str(tmp_path / "x"))
    TransactionProducer("127.0.0.1:1", group="g", trace=sink)
    PushConsumer("127.0.0.1:1", group="g", subscriptions={}, trace=sink)
    with pytest.raises(TypeError, match="trace"):
        PushConsumer("127.0.0.1:1", group="g", subscriptions={}, trace=1)  # type: ignore[arg-type]


def test_clients_of_threads_and_of_asyncio_share_a_sink(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    sink = JsonLinesSink(str(path))
    taken = threading.Event()

    async def send(nameserver: str) -> None:
        async with aio.Producer(nameserver, group="async", trace=sink) as producer:
            await producer.send(Message("T", b"y"))

    def handle(message: object) -> None:
        taken.set()

    with Cluster() as cluster:
        cluster.create_topic("T", queues=1)
        with blocking.Producer(cluster.nameserver, group="threads", trace=sink) as producer:
            msg_id = producer.send(Message("T", b"x", keys="k")).msg_id
        asyncio.run(send(cluster.nameserver))
        with blocking.PushConsumer(
            cluster.nameserver, group="g", subscriptions={"T": "*"}, handler=handle, trace=sink,
            consume_from=ConsumeFrom.FIRST_OFFSET,
        ):  # fmt: skip
            assert taken.wait(DEADLINE_S)
    sink.close()
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(one["type"], one["group"]) for one in documents} >= {
        ("Pub", "threads"),
        ("Pub", "async"),
        ("SubBefore", "g"),
    }
    (sent,) = [one for one in documents if one["type"] == "Pub" and one["msgId"] == msg_id]
    assert (sent["topic"], sent["keys"], sent["success"]) == ("T", "k", True)
    assert "@" in sent["clientId"]
