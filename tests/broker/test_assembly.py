"""From parts to what a server needs: one owner a code, hooks, the ends of turns and connections."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio

from skylark.broker.assembly import TurnEnd, closed_of, handlers_of
from skylark.broker.part import Hook, Part
from skylark.mqcommon.errors import ConfigError, RequestRefused
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.net.server import Handler, RunInTask, Server, SlowHandler
from skylark.remoting.net.steps import StepHandler, Stepper, Steps
from skylark.remoting.protocol.command import FLAG_ONEWAY, Command
from tests.support.caller import Caller

QUICK, SLOW, STEPS, LATER, BAD, LONG = 1001, 1002, 1003, 1004, 1005, 1006


class Shop(Part):
    """Handles a code of each kind."""

    def handlers(self) -> Mapping[int, Handler]:
        return {QUICK: self.quick, LATER: self.later, BAD: self.bad, LONG: self.long}

    def slow_handlers(self) -> Mapping[int, SlowHandler]:
        return {SLOW: self.slow}

    def step_handlers(self) -> Mapping[int, StepHandler]:
        return {STEPS: self.steps}

    def quick(self, channel: Channel, request: Command) -> Command:
        return request.respond(0, "quick")

    def later(self, channel: Channel, request: Command) -> None:
        """A handler whose answer would come in another turn."""

    def bad(self, channel: Channel, request: Command) -> Command:
        raise RequestRefused(13, "bad")

    def long(self, channel: Channel, request: Command) -> Command:
        raise RunInTask(self.slow)

    async def slow(self, channel: Channel, request: Command) -> Command:
        await trio.lowlevel.checkpoint()
        return request.respond(0, "slow")

    def steps(self, channel: Channel, request: Command) -> Steps[Command]:
        yield None
        return request.respond(0, "steps")


class Watcher(Part):
    """Notes each request."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def hook(self, code: int) -> Hook | None:
        return self.note

    def note(self, channel: Channel, request: Command) -> None:
        self.seen.append(request.code)


class Guard(Part):
    """Refuses a code, and answers another one itself."""

    def hook(self, code: int) -> Hook | None:
        return {QUICK: self.refuse, SLOW: self.answer}.get(code)

    def refuse(self, channel: Channel, request: Command) -> None:
        raise RequestRefused(16, "not allowed")

    def answer(self, channel: Channel, request: Command) -> Command:
        return request.respond(7, "from the hook")


@asynccontextmanager
async def serving(*parts: Part) -> AsyncIterator[tuple[RemotingClient, str]]:
    quick, slow = handlers_of(parts, Stepper(), lambda handler: handler)
    async with trio.open_nursery() as nursery, open_client() as client:
        yield client, await nursery.start(Server(quick, slow).serve, "127.0.0.1", 0)
        nursery.cancel_scope.cancel()


def test_two_parts_with_one_code_are_an_error() -> None:
    class Other(Part):
        def slow_handlers(self) -> Mapping[int, SlowHandler]:
            return {QUICK: Shop().slow}

    with pytest.raises(ConfigError, match=f"request {QUICK}: Shop and Other"):
        handlers_of([Shop(), Other()], Stepper(), lambda handler: handler)


def test_a_handler_without_hooks_is_used_as_it_is() -> None:
    shop = Shop()
    quick, _ = handlers_of([shop, Part()], Stepper(), lambda handler: handler)
    assert quick[QUICK] == shop.quick


def test_only_handlers_that_read_the_disk_are_guarded() -> None:
    class Reader(Shop):
        reads_disk = (LATER,)

    guarded: list[Handler] = []
    reader = Reader()
    handlers_of([reader], Stepper(), lambda handler: guarded.append(handler) or handler)
    assert guarded == [reader.later]


async def test_hooks_see_each_request_before_its_handler() -> None:
    shop, watcher = Shop(), Watcher()
    async with serving(shop, watcher) as (client, addr):
        remarks = [(await client.invoke(addr, Command(code))).remark for code in (QUICK, SLOW, STEPS, BAD, LONG)]
        (await client.channel(addr, 1_000)).push(Command(QUICK, flag=FLAG_ONEWAY))
        await client.invoke(addr, Command(QUICK))
    assert remarks == ["quick", "slow", "steps", "bad", "slow"]
    assert watcher.seen == [QUICK, SLOW, STEPS, BAD, LONG, QUICK, QUICK]


async def test_a_hook_refuses_or_answers_after_those_before_it() -> None:
    watcher, shop = Watcher(), Shop()
    async with serving(shop, watcher, Guard()) as (client, addr):
        refused = await client.invoke(addr, Command(QUICK))
        answered = await client.invoke(addr, Command(SLOW))
    assert (refused.code, answered.code, answered.remark) == (16, 7, "from the hook")
    assert watcher.seen == [QUICK, SLOW]


async def test_turns_and_connections_end_for_the_parts_that_care() -> None:
    told: list[str] = []

    class Caring(Part):
        def __init__(self, name: str, *, fails: bool = False) -> None:
            self.name, self.fails = name, fails

        def after_turn(self) -> None:
            told.append(f"turn {self.name}")

        def channel_closed(self, channel: Channel) -> None:
            told.append(f"closed {self.name}")
            if self.fails:
                raise KeyError("on purpose")

    parts = [Caring("a", fails=True), Part(), Caring("b")]
    turn_end = TurnEnd()
    turn_end()
    turn_end.serve(parts)
    turn_end()
    closed_of(parts)(Caller().channel)
    assert told == ["turn a", "turn b", "closed a", "closed b"]
