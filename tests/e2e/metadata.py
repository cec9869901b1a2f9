"""Changes of topics and groups on one broker, and what may be true of them after it was killed."""

from collections.abc import Awaitable, Callable, Sequence
from random import Random

from skylark import Admin
from skylark.mqcommon.errors import RemotingError
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig

TOPICS = [f"meta-{number}" for number in range(12)]
GROUPS = [f"group-{number}" for number in range(6)]
# A task changes the topics and groups of one share only.
SHARES = [[*TOPICS[share::3], *GROUPS[share::3]] for share in range(3)]

# Number of queues of a topic, of retries of a group; None when there is none.
Value = int | None


class MetadataModel:
    """For each name its possible values: the value acknowledged last, and the value of a change that was under way."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.may_be: dict[str, set[Value]] = {name: {None} for name in [*TOPICS, *GROUPS]}
        self.acked = 0
        self.stopping = False

    async def change(self, admin: Admin, addr: str, names: Sequence[str]) -> None:
        """One change after the other of names that nobody else changes, until told to stop or the broker dies."""
        while not self.stopping:
            name = self._random.choice(names)
            value = self._random.choice([None, *range(1, 9)])
            self.may_be[name].add(value)
            try:
                await self._request(admin, addr, name, value)()
            except RemotingError:
                return
            self.may_be[name] = {value}
            self.acked += 1

    def _request(self, admin: Admin, addr: str, name: str, value: Value) -> Callable[[], Awaitable[None]]:
        if name in TOPICS:
            if value is None:
                return lambda: admin.delete_topic_in_broker(addr, name)
            return lambda: admin.create_topic(addr, TopicConfig(name, value, value))
        if value is None:
            return lambda: admin.delete_group(addr, name)
        return lambda: admin.create_group(addr, SubscriptionGroupConfig(name, retry_max_times=value))

    async def check(self, admin: Admin, addr: str) -> None:
        """The broker has for each name one of the values it may have; from now on only that."""
        topics = (await admin.all_topic_config(addr)).topic_config_table
        groups = (await admin.all_groups(addr)).subscription_group_table
        found: dict[str, Value] = {name: topics[name].read_queue_nums if name in topics else None for name in TOPICS}
        found |= {name: groups[name].retry_max_times if name in groups else None for name in GROUPS}
        wrong = {name: (found[name], allowed) for name, allowed in self.may_be.items() if found[name] not in allowed}
        assert wrong == {}, f"(found, allowed): {wrong}"
        self.may_be = {name: {value} for name, value in found.items()}


class OffsetsModel:
    """A group's offset of one queue: it may be late by an interval, but never from the future, and never goes back
    behind what was already seen on disk."""

    def __init__(self) -> None:
        self.seen = -1
        self.last = 0

    def check(self, found: int | None) -> None:
        offset = -1 if found is None else found
        assert self.seen <= offset <= self.last
        self.seen = offset
