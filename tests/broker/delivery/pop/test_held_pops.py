"""Held requests: tried in their order, answered at their deadlines, forgotten with their connection."""

import pytest

from skylark.broker.delivery.pop.held_pops import MAX_WAIT_S, HeldPop, HeldPops
from skylark.broker.store.filter import ALL, Filter
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.command import Command
from tests.broker.store.support import open_store, put
from tests.support.caller import Caller
from tests.support.memory_files import MemoryFiles

TOPICS = "T", "%RETRY%g_T"
PLACE = "T", "g"


class Consumers:
    """Requests, and how often each was tried."""

    def __init__(self, most: int = 10, most_of_place: int = 10) -> None:
        self.held = HeldPops(most, most_of_place)
        self.left = 0
        self.tried: list[str] = []
        self.answered: list[str] = []

    def hold(
        self, name: str, deadline: float = 1.0, wanted: Filter = ALL, caller: Caller | None = None, group: str = "g"
    ) -> bool:
        def answer(pop: HeldPop) -> Command | None:
            self.tried.append(name)
            found = self.left > 0
            if found:
                self.left -= 1
            if not found and not pop.is_last:
                return None
            self.answered.append(name)
            return pop.request.respond()

        channel, wait_ms = (caller or Caller()).channel, round(deadline * 1_000)
        pop = HeldPop(channel, Command(1), ("T", group), (-1, wanted, False), wait_ms, answer)
        return self.held.hold(pop, TOPICS, 0.0)


async def test_messages_go_to_those_who_came_first_and_no_more_are_tried_than_needed() -> None:
    consumers = Consumers()
    for name in "abcd":
        assert consumers.hold(name)
    consumers.left = 2
    consumers.held.wake(PLACE)
    assert consumers.answered == ["a", "b"]
    assert consumers.tried == ["a", "b", "c"], "d wants the same as c"
    assert len(consumers.held) == 2
    assert consumers.held.waiting(PLACE, -1) == 2
    assert consumers.held.waiting(PLACE, 0) == 0


async def test_a_client_that_asks_again_while_it_is_answered_gets_each_message_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumers, caller = Consumers(), Caller()
    reply = Channel.reply

    def answered(channel: Channel, request: Command, response: Command, *, wake: bool = True) -> None:
        # As a proxy in this event loop does.
        consumers.held.wake(PLACE)
        reply(channel, request, response, wake=wake)

    monkeypatch.setattr(Channel, "reply", answered)
    for name in "abc":
        consumers.hold(name, caller=caller)
    consumers.left = 5
    consumers.held.wake(PLACE)
    assert (sorted(consumers.answered), len(consumers.held)) == (["a", "b", "c"], 0)


async def test_other_filters_are_tried() -> None:
    consumers = Consumers()
    consumers.hold("a")
    consumers.hold("b", wanted=Filter(frozenset([1])))
    consumers.held.wake(PLACE)
    assert consumers.tried == ["a", "b"]


async def test_queues_are_watched_while_somebody_waits() -> None:
    store, consumers = open_store(MemoryFiles()), Consumers()
    for topic in TOPICS:
        put(store, topic, 0, b"x")
        queue = store.queues.find(topic, 0)
        assert queue is not None
        assert not consumers.held.arrived(queue)
        consumers.hold("a")
        assert consumers.held.arrived(queue)
        consumers.left = 1
        assert not consumers.held.arrived(queue)
    assert consumers.answered == ["a", "a"]
    store.close()


async def test_deadlines() -> None:
    consumers = Consumers()
    consumers.hold("soon", deadline=0.25)
    consumers.hold("later", deadline=3.0)
    consumers.hold("much too late", deadline=1e9)
    consumers.held.expire(0.2)
    assert consumers.answered == []
    consumers.held.expire(0.4)
    assert consumers.answered == ["soon"]
    consumers.held.expire(4.0)
    assert consumers.answered == ["soon", "later"]
    consumers.held.expire(MAX_WAIT_S + 1)
    assert len(consumers.held) == 0


async def test_bounds() -> None:
    consumers = Consumers(most=3, most_of_place=2)
    assert [consumers.hold(name) for name in "abc"] == [True, True, False]
    assert [consumers.hold(name, group="other") for name in "de"] == [True, False]


async def test_a_closed_connection_and_the_end() -> None:
    consumers, caller = Consumers(), Caller()
    consumers.hold("a", caller=caller)
    consumers.hold("b")
    consumers.held.drop(caller.channel)
    assert len(consumers.held) == 1
    consumers.held.release()
    assert consumers.answered == ["b"]
    assert len(consumers.held) == 0
