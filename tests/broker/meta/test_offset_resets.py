"""Offsets that were set, until the consumer pulls."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.delivery.held_pulls import HeldPulls
from skylark.broker.meta import offset_resets
from skylark.broker.meta.clients import Clients
from skylark.broker.meta.offset_resets import OffsetResets
from skylark.remoting.protocol.requests.clients import ConsumerData, HeartbeatData
from tests.broker.meta.support import MetadataDir


def with_member() -> tuple[OffsetResets, MetadataDir, Any]:
    meta, clients = MetadataDir(), Clients()
    channel: Any = object()  # only a key here
    clients.join_consumer_group(channel, HeartbeatData("c"), ConsumerData("g"), "JAVA", 479, 0)
    return OffsetResets(meta.offsets, clients, HeldPulls().release_group), meta, channel


def test_pending_resets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_resets, "MAX_PENDING", 3)
    table, meta, _ = with_member()
    for queue_id in range(5):
        table.set("g", "T", queue_id, 7)
    assert [queue_id for _, _, queue_id in table.pending] == [2, 3, 4]
    assert meta.offsets.query("g", "T", 0) == 7
    table.clear()
    assert not table.pending


EVENTS = st.lists(st.tuples(st.sampled_from(["set", "take"]), st.integers(0, 1), st.integers(0, 5)))


@given(EVENTS)
def test_only_the_latest_reset_is_taken_and_only_once(events: list[tuple[str, int, int]]) -> None:
    table, _, channel = with_member()
    pending: dict[int, int] = {}
    for event, queue_id, offset in events:
        assert table.covers("g", "T", queue_id) == (queue_id in pending)
        if event == "set":
            table.set("g", "T", queue_id, offset)
            pending[queue_id] = offset
        elif event == "take":
            assert table.pop(object(), "g", "T", queue_id) is None  # type: ignore[arg-type]
            assert table.pop(channel, "g", "T", queue_id) == pending.pop(queue_id, None)


def test_a_group_without_consumers_has_nothing_pending() -> None:
    meta = MetadataDir()
    table = OffsetResets(meta.offsets, Clients(), HeldPulls().release_group)
    table.set("g", "T", 0, 7)
    assert not table.pending
    assert meta.offsets.query("g", "T", 0) == 7


def test_an_offset_that_was_set_ends_with_its_topic() -> None:
    table, _, channel = with_member()
    for topic in ("T", "U"):
        table.set("g", topic, 0, 7)
    table.topic_deleted("T")
    assert table.pop(channel, "g", "T", 0) is None
    assert table.pop(channel, "g", "U", 0) == 7
