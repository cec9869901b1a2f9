"""The processes of one consumer group, and what they were given."""

import time
from collections.abc import Iterable
from pathlib import Path

from skylark import PullConsumer, SkylarkError
from skylark.mqcommon.message.queue import MessageQueue
from tests.e2e.chaos.delivery import Look, Member, parse
from tests.e2e.chaos.programs import Programs


class Group(Programs):
    """A group whose members come and go."""

    def __init__(self, nameserver: str, topic: str, name: str, home: Path) -> None:
        super().__init__(home, "consumer", nameserver, topic, name)
        self.name = name
        self.looks: list[Look] = []

    @property
    def members(self) -> list[Member]:
        return [Member(started, parse(data)) for started, data in zip(self.started_ns, self.written(), strict=True)]

    def bodies(self) -> set[str]:
        """Each message that any member got."""
        return {got.body for member in self.members for got in member.deliveries}

    async def look(self, reader: PullConsumer, queues: Iterable[MessageQueue]) -> None:
        """Note the group's committed offsets, as far as the brokers answer."""
        for mq in queues:
            try:
                committed = await reader.committed_offset(mq)
            except SkylarkError:
                continue
            self.looks.append(Look(time.monotonic_ns(), (mq.broker_name, mq.queue_id), committed or 0))
