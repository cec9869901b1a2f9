"""Messages that wait for their time are delivered from the bucket when their files have left the disk."""

import pytest
import trio

from skylark.broker.delivery import timed_delivery
from skylark.broker.delivery.timed_delivery import CHECKPOINT_QUEUE
from skylark.broker.tier.reads import OlderReads
from skylark.mqcommon.names import SCHEDULE_TOPIC, TIMER_TOPIC
from skylark.mqcommon.tier.bucket import BucketAway
from tests.broker.delivery.later import Delays, Timers
from tests.broker.store.support import put
from tests.broker.tier.test_reads import LostBucket
from tests.broker.tier.uploaded import Uploaded
from tests.support.waiting import until

MINUTE_MS = 60_000


def leave(waiting: Delays | Timers, bucket: LostBucket, topic: str) -> Uploaded:
    """Have all messages of ``topic`` leave the disk for the bucket."""
    end = waiting.store.log.end
    while waiting.store.log.end < end + 3 * 4096:
        put(waiting.store, "other", 0, b"x" * 900)
    uploaded = Uploaded(waiting.fs, waiting.store, bucket=bucket)
    assert uploaded.clean()
    queue = waiting.store.queues.get(topic, 2 if topic == SCHEDULE_TOPIC else 0)
    assert queue.is_empty and queue.next_offset
    return uploaded


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_delayed_message_is_delivered_from_the_bucket(is_restarted: bool) -> None:
    delays, bucket = Delays(), LostBucket()
    async with delays.running():
        for number in range(3):
            delays.send(b"%d" % number, 3)
        if not is_restarted:
            leave(delays, bucket, SCHEDULE_TOPIC)
            delays.clock.advance(MINUTE_MS)
            await until(lambda: len(delays.bodies()) == 3, "deliveries")
    if is_restarted:
        async with delays.running():
            leave(delays, bucket, SCHEDULE_TOPIC)
            delays.clock.advance(MINUTE_MS)
            await until(lambda: len(delays.bodies()) == 3, "deliveries")
    assert [record.body for record in delays.records()] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_timed_messages_are_delivered_from_the_bucket_and_a_recalled_message_is_not(is_restarted: bool) -> None:
    timers, bucket = Timers(), LostBucket()
    async with timers.running():
        for number in range(3):
            timers.send(b"%d" % number, MINUTE_MS)
        timers.recall(timers.send(b"recalled", MINUTE_MS))
        await until(lambda: timers.part.read_to == 5, "entries")
        if not is_restarted:
            leave(timers, bucket, TIMER_TOPIC)
            timers.clock.advance(2 * MINUTE_MS)
            await until(lambda: len(timers.bodies()) == 3, "deliveries")
    if is_restarted:
        async with timers.running():
            leave(timers, bucket, TIMER_TOPIC)
            timers.clock.advance(2 * MINUTE_MS)
            await until(lambda: len(timers.bodies()) == 3, "deliveries")
    assert [record.body for record in timers.records()] == [b"0", b"1", b"2"]


async def test_timed_messages_after_those_that_retention_has_removed_are_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timed_delivery, "CHECKPOINT_BYTES", 1)
    timers, bucket = Timers(), LostBucket()
    async with timers.running():
        timers.send(b"expired", MINUTE_MS)
        while timers.store.log.end < 2 * 4096:
            put(timers.store, "other", 0, b"x" * 900)
        timers.send(b"kept", MINUTE_MS)
        await until(lambda: timers.store.max_offset(TIMER_TOPIC, CHECKPOINT_QUEUE) > 0, "a checkpoint")
    timers.start()
    uploaded = leave(timers, bucket, TIMER_TOPIC)
    # What is in memory is of the manifest before.
    monkeypatch.setattr(OlderReads, "known_first", lambda reads, topic, queue_id: 0)
    gone, *kept = uploaded.manifest.segments
    uploaded.manifest = uploaded.manifest.successor(2).with_segments_changed(kept, [gone.index.name])
    uploaded.manifests.append(uploaded.manifest)
    uploaded.view.use(uploaded.manifest)
    async with trio.open_nursery() as nursery:
        await nursery.start(timers.part.run)
        timers.clock.advance(2 * MINUTE_MS)
        await until(lambda: timers.bodies() == [b"kept"], "the delivery")
        nursery.cancel_scope.cancel()


async def test_a_delayed_message_waits_for_a_bucket_that_is_away() -> None:
    delays, bucket = Delays(), LostBucket()
    async with delays.running():
        delays.send(b"late", 3)
        uploaded = leave(delays, bucket, SCHEDULE_TOPIC)
        bucket.failure = BucketAway("gone")
        delays.clock.advance(MINUTE_MS)
        await until(lambda: uploaded.reads.figures.failures > 0, "an attempt")
        assert delays.bodies() == []
        bucket.failure = None
        uploaded.clock.advance(MINUTE_MS)
        await until(lambda: delays.bodies() == [b"late"], "the delivery")
