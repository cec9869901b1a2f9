"""Held pulls are answered exactly when a message that they want is confirmed."""

from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.delivery.held_pulls import HeldPull, HeldPulls
from skylark.broker.delivery.unconfirmed import Unconfirmed
from skylark.broker.store.filter import Filter
from skylark.broker.store.reader import GetStatus, read_queue
from skylark.broker.writing.elected import Elected
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from tests.broker.store.support import open_store, put
from tests.support.memory_files import MemoryFiles

A, B = 97, 98  # the hashes of the tags "a" and "b"


class Broker:
    """A store with two queues, of which messages are confirmed later, and the pulls that wait for them."""

    def __init__(self) -> None:
        self.store = open_store(MemoryFiles())
        self.elected = Elected(lambda: 0.0)
        self.store.confirmed = lambda: self.elected.confirm_offset
        self.held = HeldPulls(Unconfirmed(self.store, self.elected, self.after_turn))
        self.sent: list[tuple[int, int, int]] = []  # queue, end, tag code
        self.answered: list[HeldPull] = []
        self.looks = 0

    def after_turn(self) -> None:
        arrived = list(self.store.arrived)
        self.store.arrived.clear()
        self.held.arrived(arrived)

    def put(self, queue_id: int, tag: int) -> None:
        put(self.store, "t", queue_id, b"", b"TAGS\x01%c\x02" % tag)
        self.sent.append((queue_id, self.store.log.end, tag))

    def hold(self, queue_id: int, tag: int | None) -> HeldPull:
        """A pull of who has read all that is visible."""
        wanted = Filter(None if tag is None else frozenset({tag}))
        offset = self.store.visible_end("t", queue_id)
        channel: Any = object()
        pull = HeldPull(
            channel, Command(11), SubscriptionGroupConfig("g"), ("t", queue_id), offset, wanted, 32, 1 << 20, False, 1,
            self._retry, deadline=1e9,
        )  # fmt: skip
        assert self.held.hold(pull, self.store.queues.find("t", queue_id))
        return pull

    def _retry(self, pull: HeldPull, last: bool) -> bool:
        self.looks += 1
        queue = self.store.queues.find(*pull.queue)
        found = read_queue(self.store.log, queue, pull.offset, 32, 1 << 20, pull.wanted, self.store.confirmed)
        if found.status is GetStatus.FOUND:
            self.answered.append(pull)
        return found.status is GetStatus.FOUND


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 1), st.sampled_from([A, B])),
        st.tuples(st.just("turn"), st.just(0), st.just(0)),
        st.tuples(st.just("hold"), st.integers(0, 1), st.sampled_from([None, A, B])),
        st.tuples(st.just("confirm"), st.integers(0, 300), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_any_order_of_events(steps: list[tuple[str, int, Any]]) -> None:
    async def run() -> None:
        broker = Broker()
        begun: dict[HeldPull, int] = {}
        for what, number, tag in steps:
            if what == "put":
                broker.put(number, tag)
            elif what == "hold":
                held = broker.hold(number, tag)
                begun[held] = held.offset
            elif what == "confirm":
                # A turn ends before anything of it can be confirmed.
                broker.after_turn()
                broker.elected.confirmed(min(broker.elected.confirm_offset + number, broker.store.log.end))
            else:
                broker.after_turn()
            for pull, offset in begun.items():
                queue = [(end, code) for queue_id, end, code in broker.sent if queue_id == pull.queue[1]]
                codes = pull.wanted.tag_codes
                has_message = any(
                    end <= broker.elected.confirm_offset and (codes is None or code in codes)
                    for end, code in queue[offset:]
                )
                assert (pull in broker.answered) == has_message
        assert len(set(broker.answered)) == len(broker.answered)

    trio.run(run)


async def test_who_waits_in_a_queue_with_hidden_messages_hears_of_them() -> None:
    broker = Broker()
    broker.put(0, A)
    broker.after_turn()
    first_end = broker.store.log.end
    broker.put(0, A)
    broker.after_turn()
    pull = broker.hold(0, None)
    broker.elected.confirmed(first_end - 1)
    assert broker.looks == 0
    broker.elected.confirmed(first_end)
    assert broker.answered == [pull]


async def test_nobody_looks_at_a_queue_when_a_hidden_message_comes() -> None:
    broker = Broker()
    broker.hold(0, None)
    for _ in range(10):
        broker.put(0, A)
        broker.after_turn()
    assert broker.looks == 0


async def test_a_queue_whose_topic_was_deleted_is_not_told_of() -> None:
    broker = Broker()
    broker.put(0, A)
    broker.hold(0, None)
    broker.store.delete_topic("t")
    broker.elected.confirmed(broker.store.log.end)
    assert (broker.looks, broker.store.arrived) == (0, set())


async def test_after_a_cut_another_message_comes_where_the_hidden_one_was() -> None:
    broker = Broker()
    for _ in range(3):
        broker.put(0, A)
    pull = broker.hold(0, None)
    queue = broker.store.queues.find("t", 0)
    assert queue is not None
    end = queue.entry(0)[1]
    # As a cut does: the queue ends before its first hidden message, and another, smaller one comes there.
    queue.move_to(0)
    broker.elected.cut(0)
    queue.append(0, end - 10, A)
    broker.elected.confirmed(end - 11)
    assert broker.answered == []
    broker.elected.confirmed(end - 10)
    assert broker.answered == [pull]


async def test_others_who_wait_for_messages_hear_of_hidden_ones_too() -> None:
    broker, told = Broker(), list[int]()

    def watch(queue: Any) -> bool:
        told.append(broker.store.visible_end("t", 0))
        return True

    broker.held.watchers.append(watch)
    broker.put(0, A)
    broker.after_turn()
    broker.elected.confirmed(broker.store.log.end)
    assert told == [0, 1]
