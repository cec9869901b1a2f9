"""Deletions that do not reach their end at once; tests/broker/test_deletions.py kills whole brokers at each step."""

import pytest
import trio
import trio.testing

from skylark.broker.tasks.delete_topics import RETRY_S
from skylark.mqcommon.errors import DiskFull
from skylark.mqcommon.names import LATE_GROUP, LATE_TOPIC_PREFIX
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.desk import Desk


async def test_a_deletion_of_which_only_the_mark_fits_on_the_disk_is_done_when_there_is_room(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    topics, removal = desk.meta.topics, desk.removal
    topics.put(TopicConfig("T"))

    def no_room(name: str) -> None:
        raise DiskFull("no room")

    async with trio.open_nursery() as nursery:
        await nursery.start(removal.run)
        with monkeypatch.context() as full:
            full.setattr(topics, "delete", no_room)
            with pytest.raises(DiskFull):
                async with removal.lock:
                    await removal.delete(["T"])
            await trio.testing.wait_all_tasks_blocked()
            assert topics.deletions.unfinished()
        await trio.sleep(RETRY_S + 1)
        assert topics.get("T") is None and not topics.deletions.unfinished() and desk.deleted == ["T"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("on_slave", [False, True])
async def test_a_deletion_that_is_cancelled_is_finished_without_a_restart(on_slave: bool) -> None:
    desk = Desk()
    removal, deletions, delete_messages = desk.removal, desk.meta.topics.deletions, desk.delete_messages
    desk.meta.topics.put(TopicConfig("T"))
    scope = trio.CancelScope()

    async def cancelled(topic: str, before: int | None) -> int:
        desk.delete_messages = delete_messages  # type: ignore[method-assign]
        scope.cancel()
        await trio.lowlevel.checkpoint()
        raise AssertionError

    async with trio.open_nursery() as nursery:
        await nursery.start(removal.run)
        desk.delete_messages = cancelled  # type: ignore[method-assign]
        with scope:
            if on_slave:
                await removal.follow("T", 7)
            async with removal.lock:
                await removal.delete(["T"])
        assert deletions.unfinished()
        await trio.testing.wait_all_tasks_blocked()
        assert not deletions.unfinished() and "T" in deletions.finished()
        nursery.cancel_scope.cancel()


async def test_what_was_noted_of_late_messages_goes_with_their_topic() -> None:
    """The topic may be made again, and its messages are no later then."""
    desk = Desk()
    for name in ("T", "U"):
        desk.meta.topics.put(TopicConfig(name))
        desk.meta.offsets.commit(LATE_GROUP, f"{LATE_TOPIC_PREFIX}{name}", 0, 7)
    async with trio.open_nursery() as nursery:
        await nursery.start(desk.removal.run)
        async with desk.removal.lock:
            await desk.removal.delete(["T"])
        nursery.cancel_scope.cancel()
    assert not desk.meta.offsets.queues_of(LATE_GROUP, f"{LATE_TOPIC_PREFIX}T")
    assert desk.meta.offsets.queues_of(LATE_GROUP, f"{LATE_TOPIC_PREFIX}U") == {0: 7}
