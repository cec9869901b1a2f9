"""Files of deleted queues go in a thread, and a topic that is made again at once keeps its new ones."""

import errno
import threading

import pytest
import trio
import trio.testing

from broker.store.store import MessageStore
from tests.broker.store.support import bodies, open_store, put
from tests.broker.tasks.test_flush import OPTIONS, Parts, until

OLD, NEW = [b"old %d" % n for n in range(3000)], [b"new %d" % n for n in range(5)]


class HeldUp:
    """Holds up each removal of a queue's file in a thread until it is let go; knows which threads remove."""

    def __init__(self, parts: Parts) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.threads: set[int] = set()
        self._loop = threading.get_ident()
        parts.fs.before_call = self._before_call

    def _before_call(self, operation: str, path: str) -> None:
        if operation == "remove" and path.startswith("/store/consumequeue/"):
            self.threads.add(threading.get_ident())
            self.inside.set()
            if threading.get_ident() != self._loop:
                assert self.go_on.wait(60)


async def with_old_messages() -> Parts:
    parts = Parts()
    for body in OLD:
        put(parts.store, "t", 0, body)
    await parts.flusher.checkpoint()
    assert len(files(parts)) == 3
    return parts


def files(parts: Parts) -> list[str]:
    return [path for path in parts.fs.paths() if path.startswith("/store/consumequeue/t/")]


def after_a_kill(parts: Parts) -> MessageStore:
    return open_store(parts.fs.killed(), options=OPTIONS)


async def test_a_topic_that_is_made_again_while_its_files_go_keeps_its_new_messages() -> None:
    parts = await with_old_messages()
    held_up = HeldUp(parts)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.flusher.delete_topic, "t")
            await until(held_up.inside.is_set)
            # The loop goes on: the topic is made again, and a checkpoint waits for its turn.
            assert [put(parts.store, "t", 0, body) for body in NEW] == list(range(5))
            nursery.start_soon(parts.flusher.checkpoint)
            await trio.testing.wait_all_tasks_blocked()
            assert bodies(parts.store, "t", 0) == NEW
            held_up.go_on.set()
    assert held_up.threads and threading.get_ident() not in held_up.threads
    assert bodies(parts.store, "t", 0) == NEW
    assert len(files(parts)) == 1
    assert bodies(after_a_kill(parts), "t", 0) == NEW


async def test_files_that_could_not_be_removed_go_before_new_ones_are_written() -> None:
    parts = await with_old_messages()
    parts.fs.faults.fail("remove", nth=2)
    with pytest.raises(OSError, match="injected into remove") as raised:
        await parts.flusher.delete_topic("t")
    assert raised.value.errno == errno.EIO and len(files(parts)) == 2
    for body in NEW:
        put(parts.store, "t", 0, body)
    parts.fs.faults.fail("remove")
    await parts.flusher.checkpoint()
    assert "injected into remove" in parts.store.refusal
    assert len(files(parts)) == 2
    await parts.flusher.checkpoint()
    assert not parts.store.refusal
    assert len(files(parts)) == 1
    assert bodies(parts.store, "t", 0) == NEW
    assert bodies(after_a_kill(parts), "t", 0) == NEW


async def test_files_that_could_not_be_removed_go_when_the_store_is_closed() -> None:
    parts = await with_old_messages()
    parts.fs.faults.fail("remove")
    with pytest.raises(OSError, match="injected into remove"):
        await parts.flusher.delete_topic("t")
    assert parts.store.close() == ""
    assert files(parts) == []
    again = open_store(parts.fs, options=OPTIONS)
    assert again.max_offset("t", 0) == 0


async def test_files_that_could_not_be_removed_are_tried_again_without_a_message(
    autojump_clock: trio.testing.MockClock,
) -> None:
    parts = await with_old_messages()
    parts.fs.faults.fail("remove")
    with pytest.raises(OSError, match="injected into remove"):
        await parts.flusher.delete_topic("t")
    async with parts.running():
        with trio.move_on_after(1_000_000):  # the clock does not wait for threads
            while files(parts):  # noqa: ASYNC110
                await trio.sleep(1)
    assert files(parts) == []
