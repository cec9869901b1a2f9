"""Changes the numbers of a topic's queues on its brokers, step by step, while the topic is used.

Asks all brokers, takes the step that reshaping.py decides for each broker, and repeats until every broker is done.
The brokers' answers are the only memory, so a killed command is simply run again. RocketMQ's brokers can take part;
only copying messages from them is impossible.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import trio

from skylark.mqadmin.moving import Place, move_queues
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import BrokerError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.admin.reshaping import SetQueues, Shape, Tail, Wait, next_step
from skylark.sdk.admin.topic_changes import config_at

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.topics import TopicConfig

POLL_S = 0.5
_NOTHING = Shape(0, 0)


@lazy_dataclass(frozen=True, slots=True)
class Patience:
    """How long a command waits, and for whom.

    ``deadline_s``: the time for the whole command. ``settle_s``: queues whose ends have not changed for this time get
    no more sends of clients with old routes. ``forgotten``: groups that the command does not wait for.
    """

    settle_s: float
    deadline_s: float
    forgotten: tuple[str, ...]
    #: Whether messages that no group has read are copied to the queues that stay.
    moves: bool


class _Seen(NamedTuple):
    """The last queues of one broker: their end offsets, and since when these have not changed."""

    ends: tuple[int, ...]
    since: float


class Reshape:
    """A topic whose numbers of queues are being changed. ``addrs``: broker name → address of its master."""

    def __init__(
        self, session: Session, topic: str, addrs: Mapping[str, str], target: Mapping[str, Shape], patience: Patience
    ) -> None:
        self._session = session
        self._admin = session.admin
        self._topic = topic
        self._addrs = addrs
        self._target = target
        self._patience = patience
        self._seen: dict[str, _Seen] = {}
        self._absent: set[str] = set()
        #: Messages that were copied.
        self.moved = 0

    async def run(self) -> None:
        """Take all steps; UserError at the deadline: a further run goes on."""
        deadline = trio.current_time() + self._patience.deadline_s
        left = sorted(self._target)
        while True:
            waits = [(name, await self._advance(name)) for name in left]
            left = [name for name, wait in waits if wait is not None]
            if not left:
                return
            text = "; ".join(f"{name} waits for {wait}" for name, wait in waits if wait)
            self._session.progress(text)
            if trio.current_time() >= deadline:
                raise UserError(f"not done after {self._patience.deadline_s:g} s: {text}. Run this again to go on")
            await trio.sleep(POLL_S)

    async def _advance(self, name: str) -> str | None:
        """Take steps at one broker. Returns None when the broker is done, else the text that says what it waits for."""
        target = self._target[name]
        while True:
            config = await config_at(self._session.admin, self._addrs[name], self._topic)
            now = shape_of(config)
            who = ""
            if now.write != target.write or now.read < target.read:
                self._seen.pop(name, None)
                tail = Tail(0, False)
            elif now.read > target.read:
                tail, who = await self._open_tail(name, now, target)
                if tail.is_settled and self._patience.moves and not await self._is_moved(name, target):
                    return "messages that are not safe yet"
            else:
                tail, who = await self._closed_tail(name, target)
                if who:
                    return who
            step = next_step(now, target, tail)
            if step is None or isinstance(step, Wait):
                return None if step is None else f"{step.value}{who}"
            if isinstance(step, SetQueues):
                await self._set(name, config, step.shape)

    async def _set(self, name: str, config: "TopicConfig | None", shape: Shape) -> None:
        from dataclasses import replace

        # Brokers treat the attributes of a request as changes, and keep the others.
        attributes: dict[str, str] = {}
        if config is None:
            config = await self._config_of_another()
            attributes = {f"+{name}": value for name, value in sorted(config.attributes.items())}
        changed = replace(config, read_queue_nums=shape.read, write_queue_nums=shape.write, attributes=attributes)
        await self._admin.create_topic(self._addrs[name], changed)
        self._session.say(f"{name}: topic {self._topic} has {shape}.")

    async def _config_of_another(self) -> "TopicConfig":
        """The topic's permission, type and attributes, from a broker that has the topic, for a broker that lacks it."""
        for _, addr in sorted(self._addrs.items()):
            if (config := await config_at(self._session.admin, addr, self._topic)) is not None:
                return config
        raise UserError(f"no broker of {', '.join(sorted(self._addrs))} has topic {self._topic} any more")

    async def _open_tail(self, name: str, now: Shape, target: Shape) -> tuple[Tail, str]:
        """The removed queues that can still be read, and the text that says which groups must still read them."""
        addr, topic = self._addrs[name], self._topic
        queues = [MessageQueue(topic, name, number) for number in range(target.read, now.read)]
        ends = {queue: await self._admin.max_offset(queue) for queue in queues}
        unread: dict[str, int] = {}
        groups = await self._admin.groups_of_topic_at(addr, topic)
        for group in groups:
            if group in self._patience.forgotten:
                continue
            table = (await self._admin.consume_stats_at(addr, group, topic)).offset_table
            for queue in queues:
                row = table.get(queue)
                if row is None:
                    continue  # members of the group are connected, and read this topic no more
                if row.broker_offset > row.consumer_offset:
                    first = max(row.consumer_offset, await self._admin.min_offset(queue))
                    unread[group] = unread.get(group, 0) + row.broker_offset - first
        if not groups and not self._patience.moves:
            count = sum([end - await self._admin.min_offset(queue) for queue, end in ends.items()])
            if count:
                raise UserError(
                    f"no group reads topic {topic} on {name}, and the queues that would go have {count} messages:"
                    " give --move to copy them to the queues that stay"
                )
        await self._warn_of_absent(addr, [group for group, count in unread.items() if count])
        at = tuple(ends.values())
        seen = self._seen.get(name)
        if seen is None or seen.ends != at:
            seen = self._seen[name] = _Seen(at, trio.current_time())
        settled = trio.current_time() - seen.since >= self._patience.settle_s
        who = ", ".join(f"{group} {count}" for group, count in sorted(unread.items()) if count)
        return Tail(sum(unread.values()), settled), f" (messages left: {who})" if who else ""

    async def _closed_tail(self, name: str, target: Shape) -> tuple[Tail, str]:
        """The removed queues that can be neither read nor written."""
        try:
            answer = await self._admin.closed_queues(
                self._addrs[name], self._topic, target.read, self._patience.forgotten
            )
        except BrokerError as error:
            if not error.is_unknown_request:
                raise
            return await self._closed_tail_of_rocketmq(name, target), ""
        if answer.popped:
            return Tail(0, True), f"{answer.popped} check points of pops"
        ends_at = 1 + max((row.queue_id for row in answer.unread), default=-1)
        return Tail(sum(row.unread for row in answer.unread), True, ends_at), ""

    async def _closed_tail_of_rocketmq(self, name: str, target: Shape) -> Tail:
        seen = self._seen.get(name)
        if seen is None:
            return Tail(0, True)  # closed by an earlier run, which has checked them
        queues = [MessageQueue(self._topic, name, target.read + number) for number in range(len(seen.ends))]
        late = [await self._admin.max_offset(queue) - end for queue, end in zip(queues, seen.ends, strict=True)]
        return Tail(sum(late), True, target.read + len(late) if any(late) else 0)

    async def _is_moved(self, name: str, target: Shape) -> bool:
        """Copy the unread messages. Returns whether all of them are copied."""
        places = [Place(self._addrs[name], number) for number in range(target.write)]
        try:
            queues = await move_queues(
                self._admin, self._addrs[name], self._topic, target.read, places, self._count_copied
            )
        except BrokerError as error:
            if not error.is_unknown_request:
                raise
            raise UserError(
                f"{name} is a broker of RocketMQ, from which nothing can be moved: leave out --move"
            ) from None
        return all(queue.moved_to >= queue.end for queue in queues)

    def _count_copied(self, messages: int) -> None:
        self.moved += messages
        self._session.progress(f"{self.moved:,} messages copied")

    async def _warn_of_absent(self, addr: str, groups: list[str]) -> None:
        for group in groups:
            if group and group not in self._absent and not await is_online(self._session, addr, group):
                self._absent.add(group)
                self._session.warn(
                    f"group {group} has messages to read and no consumer: start one, or give --forgetGroup {group}"
                )


def shape_of(config: "TopicConfig | None") -> Shape:
    """The numbers of queues of a topic; none for a broker that does not have it."""
    return _NOTHING if config is None else Shape(config.write_queue_nums, config.read_queue_nums)


async def is_online(session: Session, addr: str, group: str) -> bool:
    """Whether a consumer of the group is connected to the broker."""
    try:
        await session.admin.consumer_connection(group, addr)
    except BrokerError:
        return False
    return True
