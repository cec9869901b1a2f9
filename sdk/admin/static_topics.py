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
# Messages that were stored before the broker refused sends are on enough replicas by then, or the set is in trouble.
SETTLE_S = 30.0


class StaticTopic:
    """One static topic, and the names of the brokers that are to have its queues: the clusters of ``targets`` know it.

    ``say`` is called with a line about what is not known everywhere yet, ``progress`` with each step that is done.
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

    async def look(self) -> State:
        """What the brokers say. UserError when the topic is not static, or in a state that no command makes."""
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
        """Have ``total`` logical queues; the state before and after."""
        before = await self.look()
        led = grown(before, self.targets, total, _now_ms())
        after = levelled(led, total, led.epoch)
        if not dry_run and changed_parts(before, after):
            await self._put(before, led, list(led.parts))
            await self._put(led, after, list(after.parts))
            await self._until_known(after)
        return before, after

    async def move(self, *, dry_run: bool) -> tuple[State, State]:
        """Have the targets lead all logical queues, about as many each; the state before and after."""
        before = await self.look()
        if not before.parts:
            raise UserError(f"there is no static topic {self._topic}; mqadmin updateStaticTopic makes one")
        if dry_run:
            return before, begun(before, moves(before, self.targets), _now_ms())
        await self._finish(before)
        state = await self.look()
        # Each step is planned anew from what the brokers say then.
        if wanted := moves(state, self.targets):
            after = begun(state, wanted, _now_ms())
            await self._put(state, after, sorted(set(wanted.values())))
            await self._finish(await self.look())
            state = await self.look()
        after = levelled(state, state.total, state.epoch)
        await self._put(state, after, list(after.parts))
        await self._until_known(after)
        return before, await self.look()

    async def _finish(self, state: State) -> None:
        """Take the steps after the first one for all queues that are on their way."""
        if not state.undecided:
            return
        told = given_away(state)
        await self._put(state, told, list(told.parts))
        ends = {queue.queue_id: await self._end_of(queue.stretches[-2]) for queue in told.undecided}
        after = decided(told, ends)
        # The new broker first: until it knows, readers wait at the end of the former one.
        leaders = sorted({queue.leader.bname for queue in told.undecided})
        await self._put(told, after, [*leaders, *(name for name in after.parts if name not in leaders)])

    async def _end_of(self, stretch: Stretch) -> int:
        """Where a queue that takes no sends any more ends, once all of its messages are on enough replicas."""
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
        """Return when routes show who leads what, so that clients that begin now find it."""
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
