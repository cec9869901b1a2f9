"""`OffsetAdmin`: the operations of `Admin` on the offsets of groups, and on what the groups' clients say about them."""

from mqcommon.errors import BrokerError, UserError
from mqcommon.message.queue import MessageQueue
from remoting.protocol.codes import ResponseCode
from remoting.protocol.requests.clients import ProducerTableInfo
from remoting.protocol.requests.groups import ConsumeStatsList, QueueTimeSpan, SubscriptionGroupConfig
from sdk import broker_api
from sdk.admin import broker_admin_api as api
from sdk.admin import offset_admin_api as offset_api
from sdk.admin.asking import Asking
from sdk.admin.given_names import takes_plain_names
from sdk.admin.rollback import Rollback, rollback_of
from sdk.checked import GroupName, NotNegative, Offset, TopicName, checked_methods
from sdk.endpoint import Endpoint

#: As a time: the end of each queue.
END_OF_QUEUE = -1


@checked_methods
@takes_plain_names
class OffsetAdmin:
    """Part of `sdk.Admin`."""

    _ask: Asking

    # --- offsets of groups

    async def reset_offsets(
        self,
        group: GroupName,
        topic: TopicName,
        timestamp_ms: int,
        *,
        force: bool = True,
        cluster: str | None = None,
    ) -> dict[MessageQueue, int]:
        """Let the group go on at the first message stored at or after a time; -1 is the end of each queue.

        Connected consumers follow; without any, the offsets are set all the same. Without ``force`` offsets are only
        moved back. Returns the offset of each queue. ``cluster`` chooses other brokers than the topic's route.
        """

        async def reset(at: Endpoint) -> dict[MessageQueue, int]:
            try:
                return await offset_api.reset_offsets(at, group, topic, timestamp_ms, force=force)
            except BrokerError as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
            # RocketMQ before 5.0, with no consumer connected.
            return {
                one.queue: one.rollback_offset for one in await self._roll_back(at, group, topic, timestamp_ms, force)
            }

        answers = await self._ask.each_of_topic(topic, reset, cluster)
        return {mq: offset for offsets in answers.all() for mq, offset in sorted(offsets.items())}

    async def reset_queue(
        self,
        addr: str,
        group: GroupName,
        topic: TopicName,
        queue_id: NotNegative,
        timestamp_ms: int,
        offset: Offset | None = None,
        *,
        force: bool = True,
    ) -> dict[MessageQueue, int]:
        """As `reset_offsets`, for one queue of the broker. With ``offset`` the time is not used.

        UserError unless the broker has useServerSideResetOffset=true: others would reset the whole topic.
        """
        at = self._ask.at(addr)
        if (await api.broker_config(at)).get("useServerSideResetOffset") != "true":
            raise UserError(
                f"broker {addr} cannot reset one queue: it is older than 5.0, or has useServerSideResetOffset=false"
            )
        return await offset_api.reset_offsets(
            at,
            group,
            topic,
            timestamp_ms,
            force=force,
            queue_id=queue_id,
            offset=-1 if offset is None else offset,
        )

    async def roll_back_offsets(
        self, group: GroupName, topic: TopicName, timestamp_ms: int, *, force: bool = True
    ) -> list[Rollback]:
        """Set the group's offsets as `reset_offsets` does, but by commits: connected consumers do not follow.

        Any broker can do this; consumers of the group must not run.
        """
        answers = await self._ask.each_of_topic(
            topic, lambda at: self._roll_back(at, group, topic, timestamp_ms, force)
        )
        return sorted((one for found in answers.all() for one in found), key=lambda one: one.queue)

    async def clone_group_offsets(
        self, source: GroupName, target: GroupName, topic: TopicName, *, offline: bool = False
    ) -> None:
        """Give ``target`` the offsets of ``source`` in a topic.

        ``offline``: also when connected consumers of ``source`` no longer subscribe to it.
        """
        answers = await self._ask.each_of_topic(
            topic, lambda at: offset_api.clone_offsets(at, source, target, topic, offline=offline)
        )
        answers.all()

    async def consume_time_spans(self, group: GroupName, topic: TopicName) -> list[QueueTimeSpan]:
        """How far the group is in time in each queue of a topic; ``delay_time``: how long its next message waits."""
        answers = await self._ask.each_of_topic(topic, lambda at: offset_api.time_spans(at, group, topic))
        return [span for spans in answers.all() for span in spans]

    async def broker_consume_stats(self, addr: str, *, only_ordered: bool = False) -> ConsumeStatsList:
        """The progress of all groups of the broker, or of those with ordered topics."""
        return await offset_api.broker_consume_stats(self._ask.at(addr), is_order=only_ordered)

    # --- groups and clients of a broker

    async def consumer_status(
        self, group: GroupName, topic: TopicName, client_id: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        """Client id → how far that consumer of the group is in its queues; of one consumer if ``client_id`` is given.

        The brokers ask the consumers; those that do not answer are left out.
        """
        answers = await self._ask.each_of_topic(
            topic, lambda at: offset_api.consumer_status(at, group, topic, client_id)
        )
        found: dict[str, dict[MessageQueue, int]] = {}
        for table in answers.any():
            for name, offsets in table.items():
                found.setdefault(name, {}).update(offsets)
        return found

    async def group_config(self, addr: str, group: GroupName) -> SubscriptionGroupConfig:
        """One group of the broker; BrokerError 26 when it has no such group."""
        return await offset_api.group_config(self._ask.at(addr), group)

    async def all_producers(self, addr: str) -> ProducerTableInfo:
        """The producers that are connected to the broker, by group."""
        return await offset_api.all_producers(self._ask.at(addr))

    # --- inside

    async def _roll_back(self, at: Endpoint, group: str, topic: str, timestamp_ms: int, force: bool) -> list[Rollback]:
        stats = await api.consume_stats(at, group, topic)
        rows = []
        for mq, progress in sorted(stats.offset_table.items()):
            by_time = progress.broker_offset
            if timestamp_ms != END_OF_QUEUE:
                by_time = await broker_api.search_offset(at, topic, mq.queue_id, timestamp_ms)
            row = rollback_of(mq, progress, by_time, force=force)
            await broker_api.commit_offset(at, group, topic, mq.queue_id, row.rollback_offset)
            rows.append(row)
        return rows
