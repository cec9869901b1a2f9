"""The part of `FakeAdmin` for the offsets of groups; each method as in `sdk.admin.client.Admin`."""

from typing import Any

from mqcommon.errors import BrokerError
from mqcommon.message.queue import MessageQueue
from remoting.protocol.requests.clients import ProducerInfo, ProducerTableInfo
from remoting.protocol.requests.groups import ConsumeStatsList, QueueTimeSpan, SubscriptionGroupConfig
from sdk.admin.client import Rollback


class FakeOffsets:
    """Answers from the World."""

    world: Any

    async def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True, cluster: str | None = None
    ) -> dict[MessageQueue, int]:
        self.world.asked("reset_offsets", group, topic, timestamp_ms, force)
        return self.world.offsets

    async def reset_queue(
        self,
        addr: str,
        group: str,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        offset: int | None = None,
        *,
        force: bool = True,
    ) -> dict[MessageQueue, int]:
        self.world.asked("reset_queue", addr, group, topic, queue_id, timestamp_ms, offset, force)
        return {mq: at for mq, at in self.world.offsets.items() if mq.queue_id == queue_id}

    async def roll_back_offsets(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> list[Rollback]:
        self.world.asked("roll_back_offsets", group, topic, timestamp_ms, force)
        return [Rollback(mq, 9, 8, at, at) for mq, at in self.world.offsets.items()]

    async def clone_group_offsets(self, source: str, target: str, topic: str, *, offline: bool = False) -> None:
        self.world.asked("clone_group_offsets", source, target, topic, offline)

    async def consume_time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        self.world.asked("consume_time_spans", topic, group)
        return self.world.spans

    async def broker_consume_stats(self, addr: str, *, only_ordered: bool = False) -> ConsumeStatsList:
        self.world.asked("broker_consume_stats", addr, only_ordered)
        stats = self.world.consume_stats
        return ConsumeStatsList([{group: [one]} for group, one in stats.items()], addr, 3)

    async def consumer_status(
        self, group: str, topic: str, client_id: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        self.world.asked("consumer_status", group, topic, client_id)
        return {client: self.world.offsets for client in self.world.running}

    async def group_config(self, addr: str, group: str) -> SubscriptionGroupConfig:
        self.world.asked("group_config", addr, group)
        if group not in self.world.group_configs:
            raise BrokerError(26, "no such group", addr)
        return self.world.group_configs[group]

    async def all_producers(self, addr: str) -> ProducerTableInfo:
        self.world.asked("all_producers", addr)
        infos = {group: [ProducerInfo(one.client_id, one.client_addr, one.language, one.version, 5)
                         for one in found.connection_set] for group, found in self.world.producers.items()}  # fmt: skip
        return ProducerTableInfo(infos)
