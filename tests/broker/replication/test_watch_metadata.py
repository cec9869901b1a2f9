"""Requests 43 and 7100: what slaves ask."""

from collections.abc import Callable

import pytest
import trio
import trio.testing

from skylark.broker.meta.metadata import Metadata
from skylark.broker.replication import watch_metadata
from skylark.broker.replication.watch_metadata import MAX_HOLD_MS, MetadataWatch
from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.dialect import Dialect, decode_body, encode_body
from skylark.remoting.protocol.requests.groups import MessageRequestMode, SubscriptionGroupConfig
from skylark.remoting.protocol.requests.offsets import (
    GET_ALL_CONSUMER_OFFSET,
    ConsumerOffsetTable,
    DelayOffsetTable,
    GetAllConsumerOffsetRequestHeader,
    GetAllConsumerOffsetResponseHeader,
)
from skylark.remoting.protocol.requests.replication import WATCH_METADATA, MetadataVersions
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.desk import Desk
from tests.broker.meta.support import MetadataDir
from tests.broker.meta.test_consumer_offsets import flush
from tests.support.caller import Caller


def watch_of(metadata: Metadata) -> MetadataWatch:
    """The watch, as a broker wires it."""
    watch = MetadataWatch(metadata)
    for table in (metadata.topics, metadata.groups, metadata.delay_offsets, metadata.request_modes):
        table.on_change.append(watch.changed)
    return watch


class Watching:
    """A master's metadata, and the answers that slaves got."""

    def __init__(self) -> None:
        self.meta = MetadataDir()
        self.watch = watch_of(self.meta.metadata)
        self.slave = Caller()

    @property
    def answers(self) -> list[MetadataVersions]:
        return [decode_body(MetadataVersions, answer.body, answer.codec) for answer in self.slave.received()]

    def ask(self, known: MetadataVersions, hold_ms: int = 3_000, slave: Caller | None = None) -> None:
        body = encode_body(known, Dialect.CBOR)
        request = Command(WATCH_METADATA.code, {"holdMillis": hold_ms}, body, codec=CBOR)
        channel = (slave or self.slave).channel
        answer = self.watch.watch(channel, request)
        if answer is not None:
            channel.reply(request, answer)


def commit(meta: MetadataDir) -> None:
    meta.offsets.commit("g", "T", 0, meta.offsets.changes + 1)


async def test_who_knows_nothing_is_told_at_once() -> None:
    watching = Watching()
    watching.ask(MetadataVersions())
    assert watching.answers == [watching.watch.versions()]
    assert watching.answers[0].topics == watching.meta.topics.data_version
    assert watching.answers[0].consumer_offsets == watching.meta.offsets.live_version


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.topics.put(TopicConfig("T")),
        lambda meta: meta.groups.put(SubscriptionGroupConfig("g")),
        lambda meta: meta.metadata.delay_offsets.put(DelayOffsetTable({1: 1}, DataVersion(0, 1, 1))),
        lambda meta: meta.metadata.request_modes.put(MessageRequestMode("g", "T")),
    ],
    ids=["topic", "group", "delay offset", "mode of consumption"],
)
async def test_a_change_answers_at_once(change: Callable[[MetadataDir], None]) -> None:
    watching = Watching()
    known = watching.watch.versions()
    watching.ask(known)
    assert len(watching.watch) == 1
    change(watching.meta)
    assert watching.answers == [watching.watch.versions()] != [known]
    assert len(watching.watch) == 0


async def test_many_changes_before_the_next_question_are_one_answer() -> None:
    watching = Watching()
    watching.ask(watching.watch.versions())
    for number in range(100):
        watching.meta.topics.put(TopicConfig(f"T{number}"))
    assert len(watching.answers) == 1
    watching.ask(watching.answers[0])
    assert len(watching.answers) == 2
    watching.ask(watching.answers[1])
    assert len(watching.watch) == 1


async def test_consumer_offsets_are_told_at_the_next_tick() -> None:
    watching = Watching()
    watching.ask(watching.watch.versions())
    watching.watch.tick()
    commit(watching.meta)
    assert watching.answers == []
    watching.watch.tick()
    assert watching.answers == [watching.watch.versions()]
    commit(watching.meta)
    watching.ask(watching.answers[0])  # news already, and yet it waits for the tick
    assert len(watching.watch) == 1


async def test_offsets_of_another_run_of_the_master_are_news() -> None:
    watching = Watching()
    commit(watching.meta)
    known = watching.watch.versions()
    run_ms, changes = known.consumer_offsets.timestamp, known.consumer_offsets.counter
    known.consumer_offsets = DataVersion(0, run_ms - 1, changes)
    watching.ask(known)
    assert watching.answers == [watching.watch.versions()]


async def test_a_question_is_held_no_longer_than_its_slave_asks(autojump_clock: trio.testing.MockClock) -> None:
    watching = Watching()
    known = watching.watch.versions()
    watching.ask(known, 0)
    assert watching.answers == [known]
    watching.ask(known, 3_000)
    watching.ask(known, 10 * MAX_HOLD_MS)
    await trio.sleep(2.9)
    watching.watch.tick()
    assert len(watching.watch) == 2
    await trio.sleep(0.1)
    watching.watch.tick()
    assert (len(watching.watch), len(watching.answers)) == (1, 2)
    await trio.sleep(MAX_HOLD_MS / 1000)
    watching.watch.tick()
    assert watching.answers == [known] * 3


async def test_a_connection_that_is_gone_is_forgotten_and_a_stop_answers() -> None:
    watching, other = Watching(), Caller()
    known = watching.watch.versions()
    watching.ask(known, slave=other)
    watching.ask(known)
    watching.watch.channel_closed(other.channel)
    assert len(watching.watch) == 1
    await watching.watch.stop()
    assert (len(watching.watch), watching.answers, other.received()) == (0, [known], [])


async def test_the_questions_that_are_held_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_metadata, "MAX_HELD", 2)
    watching = Watching()
    known = watching.watch.versions()
    watching.ask(known)
    watching.ask(known)
    with pytest.raises(RequestRefused, match="too many"):
        watching.ask(known)


async def test_all_consumer_offsets() -> None:
    desk = Desk()
    desk.meta.offsets.commit("g", "T", 0, 7)
    desk.meta.offsets.commit("g", "T", 11, 8)
    flush(desk.meta)
    answer = await desk.ask(GET_ALL_CONSUMER_OFFSET.code)
    table = decode_body(ConsumerOffsetTable, answer.body)
    assert table.offset_table == {"T@g": {0: 7, 11: 8}}
    assert table.data_version == desk.meta.offsets.data_version
    assert b'"0":7' in answer.body
    java_4_9 = await desk.ask(GET_ALL_CONSUMER_OFFSET.code, version=395)
    assert b"{0:7,11:8}" in java_4_9.body


async def test_offsets_that_changed_since_the_slave_asked_last() -> None:
    desk = Desk()
    offsets = desk.meta.offsets
    offsets.commit("g", "T", 0, 7)
    offsets.commit("h", "T", 0, 7)
    whole = await desk.ask(GET_ALL_CONSUMER_OFFSET.code, codec=CBOR)
    told = GetAllConsumerOffsetResponseHeader.from_ext(whole.ext)
    assert (told.run, told.changes, told.is_part) == (offsets.live_version.timestamp, 2, False)
    offsets.commit("g", "T", 0, 8)
    offsets.commit("g", "T", 0, 9)
    ask = GetAllConsumerOffsetRequestHeader(told.run, told.changes).to_ext()
    part = await desk.ask(GET_ALL_CONSUMER_OFFSET.code, ask, codec=CBOR)
    assert decode_body(ConsumerOffsetTable, part.body, CBOR).offset_table == {"T@g": {0: 9}}
    assert GetAllConsumerOffsetResponseHeader.from_ext(part.ext).is_part
    finish(offsets.remove_group("h"))
    again = await desk.ask(GET_ALL_CONSUMER_OFFSET.code, ask, codec=CBOR)
    assert decode_body(ConsumerOffsetTable, again.body, CBOR).offset_table == {"T@g": {0: 9}}
    assert not GetAllConsumerOffsetResponseHeader.from_ext(again.ext).is_part
    java = await desk.ask(GET_ALL_CONSUMER_OFFSET.code)
    assert java.ext is None
