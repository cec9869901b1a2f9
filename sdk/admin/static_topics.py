"""Makes, grows and moves static topics, step by step, while they are used.

Each step is planned from what all brokers say, by remapping.py, so a command that was killed is simply run again.
"""

import time
from collections.abc import Callable, Collection, Mapping

import trio

from skylark.mqcommon.errors import BrokerError, RouteNotFound, UserError
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.topics import LogicQueueMappingItem as Stretch
from skylark.sdk.admin.client import Admin
from skylark.sdk.admin.remapping import (
    Part,
    State,
    begun,
    changed_parts,
    check,
    decided,
    given_away,
    grown,
    levelled,
    moves,
)
from skylark.sdk.admin.targets import all_targets

POLL_S = 0.2
# Brokers tell NameServers of a change at once.
KNOWN_S = 10.0
# Within this time a healthy set has replicated all messages that it stored before it refused sends.
SETTLE_S = 30.0


class StaticTopic:
    """One static topic, and the names of its future brokers (``targets``), whose clusters know the topic.

    ``say`` is called with a line about unfinished registrations, ``progress`` with each finished step.
    """

    def __init__(
        self,
        admin: Admin,
        topic: str,
        targets: Collection[str],
        *,
        say: Callable[[str], None],
        progress: Callable[[str], None],
    ) -> None:
        self._admin = admin
        self._topic = topic
        self._say = say
        self._progress = progress
        self.targets = targets
        # Broker name → address of its master.
        self._addrs: Mapping[str, str] = {}

    async def read_state(self) -> State:
        """The state, by the brokers' answers. UserError when the topic is not static, or in an invalid state."""
        brokers = all_targets(await self._admin.cluster_info())
        self._addrs = {one.broker_name: one.addr for one in brokers if one.broker_id == MASTER_ID}
        parts = await self._parts()
        involved = {*parts, *self.targets}
        clusters = {one.cluster for one in brokers if one.broker_name in involved}
        reached = [one.broker_name for one in brokers if one.cluster in clusters and one.broker_id == MASTER_ID]
        state = State(self._topic, parts, list(dict.fromkeys(reached)))
        led = {stretch.bname for queue in state.queues.values() for stretch in queue.stretches[-1:]}
        away = sorted((led | set(self.targets)) - set(self._addrs))
        if away:
            raise UserError(f"brokers without a master now: {', '.join(away)}; see mqadmin clusterList")
        check(state)
        return state

    async def grow(self, total: int, *, dry_run: bool) -> tuple[State, State]:
        """Give the topic ``total`` logical queues. Returns the state before and after; ``dry_run`` changes nothing."""
        before = await self.read_state()
        led = grown(before, self.targets, total, _now_ms())
        after = levelled(led, total, led.epoch)
        if not dry_run and changed_parts(before, after):
            await self._put(before, led, list(led.parts))
            await self._put(led, after, list(after.parts))
            await self._until_known(after)
        return before, after

    async def move(self, *, dry_run: bool) -> tuple[State, State]:
        """Spread all logical queues evenly over the targets; ``dry_run`` changes nothing.

        Returns the state before and after.
        """
        before = await self.read_state()
        if not before.parts:
            raise UserError(f"there is no static topic {self._topic}; mqadmin updateStaticTopic makes one")
        if dry_run:
            return before, begun(before, moves(before, self.targets), _now_ms())
        await self._finish(before)
        state = await self.read_state()
        # Each step is planned anew from the brokers' current answers.
        if wanted := moves(state, self.targets):
            after = begun(state, wanted, _now_ms())
            await self._put(state, after, sorted(set(wanted.values())))
            await self._finish(await self.read_state())
            state = await self.read_state()
        after = levelled(state, state.total, state.epoch)
        await self._put(state, after, list(after.parts))
        await self._until_known(after)
        return before, await self.read_state()

    async def _finish(self, state: State) -> None:
        """Take the steps after the first for all queues that are being moved."""
        if not state.undecided:
            return
        informed = given_away(state)
        await self._put(state, informed, list(informed.parts))
        ends = {queue.queue_id: await self._end_of(queue.stretches[-2]) for queue in informed.undecided}
        after = decided(informed, ends)
        # Inform the new broker first: until then readers wait at the end of the former queue.
        leaders = sorted({queue.leader.bname for queue in informed.undecided})
        await self._put(informed, after, [*leaders, *(name for name in after.parts if name not in leaders)])

    async def _end_of(self, stretch: Stretch) -> int:
        """The end of a queue that takes no more sends, once all of its messages are on enough replicas."""
        addr = self._addrs.get(stretch.bname)
        if addr is None:
            raise UserError(
                f"broker {stretch.bname}, which a queue moves away from, has no master now. Run this again when it has:"
                " readers of the queue wait until then"
            )
        deadline = trio.current_time() + SETTLE_S
        while True:
            end = await self._admin.own_max_offset(addr, self._topic, stretch.queue_id, committed=False)
            if await self._admin.own_max_offset(addr, self._topic, stretch.queue_id) == end:
                return end
            if trio.current_time() >= deadline:
                raise UserError(
                    f"queue {stretch.queue_id} of broker {stretch.bname} has messages that are not on enough replicas"
                    f" after {SETTLE_S:g} s. Run this again when its slaves are back: until then readers of the queue"
                    " wait"
                )
            await trio.sleep(POLL_S)

    async def _until_known(self, state: State) -> None:
        """Return when routes show the new leaders, so that clients that start now find them."""
        with trio.move_on_after(KNOWN_S):
            while True:
                try:
                    route = await self._admin.topic_route(self._topic)
                except RouteNotFound:
                    pass
                else:
                    parts = route.topic_queue_mapping_by_broker or {}
                    if all(name in parts and parts[name].epoch >= state.epoch for name in state.parts):
                        return
                await trio.sleep(POLL_S)
        self._say(f"The NameServer does not show all of topic {self._topic} yet.")

    async def _put(self, before: State, after: State, order: Collection[str]) -> None:
        changed = changed_parts(before, after)
        for name in order:
            part = changed.get(name)
            if part is None:
                continue
            addr = self._addrs.get(name)
            if addr is None:
                raise UserError(f"broker {name} has no master now, and must know of the change. Run this again")
            await self._admin.put_static_topic(addr, part.config, part.mapping)
            self._progress(f"broker {name} knows of epoch {part.mapping.epoch}")

    async def _parts(self) -> dict[str, Part]:
        found: dict[str, Part] = {}
        for name, addr in self._addrs.items():
            try:
                one = await self._admin.static_topic(addr, self._topic)
            except BrokerError as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    continue
                raise
            if one.mapping_detail is None:
                raise UserError(
                    f"topic {self._topic} is on broker {name}, and is not static: a topic that has queues already"
                    " cannot become static. Choose another name"
                )
            found[name] = Part(one.config, one.mapping_detail)
        return found


def _now_ms() -> int:
    return int(time.time() * 1000)
