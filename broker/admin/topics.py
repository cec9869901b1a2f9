"""Topics of this broker, as administrators see them: 17, 18, 21, 215, 305, 351, 513, 5002.

A change is answered when it is on disk.
Neighbours: meta/topics.py; observe/stats_handlers.py has the offsets of the queues.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from skylark.broker.meta.metadata import Metadata
from skylark.broker.meta.table import Durable, refused_when_not_stored
from skylark.broker.meta.table_pages import Cursor, answer_whole_or_page, some_rows
from skylark.broker.meta.topics import attribute_changes, changed_attributes, parse_attribute_changes
from skylark.broker.part import Part
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.delete_topics import TopicRemoval
from skylark.mqcommon.errors import RequestRefused, StoreError
from skylark.mqcommon.names import (
    MAX_PERM,
    MAX_QUEUE_NUMS,
    RETRY_PREFIX,
    check_topic,
    check_topic_is_users,
    is_system_topic,
    retry_topic,
)
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, SlowHandler
from skylark.remoting.net.steps import NAMES, StepHandler, Steps, result_of, slices
from skylark.remoting.protocol.bounded_body import BodyLimits
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.pop_info import RETRY_V1, RETRY_V2, pop_retry_topic
from skylark.remoting.protocol.requests.replication import PageRequestHeader
from skylark.remoting.protocol.requests.topics import (
    DELETE_TOPIC_IN_BROKER,
    DELETE_TOPIC_IN_BROKER_LIST,
    GET_ALL_TOPIC_CONFIG,
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    GET_TOPIC_CONFIG,
    TOPIC_FILTER_TYPE,
    UPDATE_AND_CREATE_STATIC_TOPIC,
    UPDATE_AND_CREATE_TOPIC,
    UPDATE_AND_CREATE_TOPIC_LIST,
    CreateTopicRequestHeader,
    GetAllTopicConfigResponseHeader,
    TopicConfig,
    TopicConfigAndMapping,
    TopicConfigTable,
    TopicList,
)

logger = logging.getLogger(__name__)

# The limits of a mapping: thousands of stretches, or about a thousand from RocketMQ's tools, which do not quote ids.
_MAPPING = BodyLimits(max_bytes=1024 * 1024, max_entries=20_000, relaxed_bytes=128 * 1024)

_UNFINISHED = (
    "a topic of this name is being deleted, which is not done to its end yet and is tried again every few seconds"
)


class TopicHandlers(Part):
    """Handles the requests about topics. ``removal`` deletes topics."""

    def __init__(self, store: MessageStore, metadata: Metadata, durable: Durable, removal: TopicRemoval) -> None:
        self._topics = metadata.topics
        self._groups = metadata.groups
        self._offsets = metadata.consumer_offsets
        self._seals = metadata.seals
        self._store = store
        self._durable = durable
        self._cursor = Cursor()
        self._removal = removal

    def handlers(self) -> dict[int, Handler]:
        return {
            GET_TOPIC_CONFIG.code: self.get,
        }

    def step_handlers(self) -> dict[int, StepHandler]:
        return {
            GET_ALL_TOPIC_CONFIG.code: self.get_all,
            GET_SYSTEM_TOPIC_LIST_FROM_BROKER.code: self.get_system,
        }

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {
            UPDATE_AND_CREATE_TOPIC.code: self.update,
            UPDATE_AND_CREATE_TOPIC_LIST.code: self.update_list,
            UPDATE_AND_CREATE_STATIC_TOPIC.code: self.update_static,
            DELETE_TOPIC_IN_BROKER.code: self.delete,
            DELETE_TOPIC_IN_BROKER_LIST.code: self.delete_list,
        }

    async def update(self, channel: Channel, request: Command) -> Command:
        """17: create or change a topic."""
        header = UPDATE_AND_CREATE_TOPIC.header(request)
        return await self._put(channel, request, lambda: [self._changed(*_sent(header))])

    async def update_list(self, channel: Channel, request: Command) -> Command:
        """18: create or change several topics: all of them, or none when one is refused."""
        sent = UPDATE_AND_CREATE_TOPIC_LIST.body(request).topic_config_list
        if not sent:
            raise _bad("topicConfigList names no topic")
        return await self._put(
            channel, request, lambda: [self._changed(config, attribute_changes(config.attributes)) for config in sent]
        )

    async def update_static(self, channel: Channel, request: Command) -> Command:
        """513: create or change a static topic, and this broker's part of its mapping."""
        header = UPDATE_AND_CREATE_STATIC_TOPIC.header(request)
        sent = UPDATE_AND_CREATE_STATIC_TOPIC.body(request, _MAPPING)
        if sent.topic != header.topic:
            raise _bad(f"the mapping is of topic {sent.topic}, and the request of {header.topic}")
        with refused_when_not_stored():
            async with self._removal.lock:
                self._refuse_unfinished(header.topic)
                config = self._checked(*_sent(header))
                mapping = self._topics.static.merged(sent, force=bool(header.force))
                self._topics.put_static(config, mapping)
            await self._durable()
        logger.info("static topic %s set to %s %s by %s", header.topic, config, mapping, channel.remote)
        return request.respond()

    async def _put(self, channel: Channel, request: Command, configs: Callable[[], list[TopicConfig]]) -> Command:
        """Put the topics that ``configs`` returns; ``configs`` reads the present topics and refuses invalid changes."""
        with refused_when_not_stored():
            async with self._removal.lock:  # not between the steps of a deletion
                changed = [config for config in configs() if config != self._topics.get(config.topic_name)]
                for config in changed:
                    self._refuse_unfinished(config.topic_name)
                for config in changed:
                    # Sealed queues are opened for messages again. If this is refused, nothing has changed yet.
                    await result_of(
                        self._seals.lift(config.topic_name, self._offsets, self._store, config.write_queue_nums)
                    )
                for config in changed:
                    if config != self._topics.get(config.topic_name):
                        self._topics.put(config)
                        logger.info("topic %s set to %s by %s", config.topic_name, config, channel.remote)
            await self._durable()
        return request.respond()

    async def delete(self, channel: Channel, request: Command) -> Command:
        """215: delete the topic, the offsets that groups have in it, and its queues; also its retry topics of pops."""
        await self._delete_users(channel, [DELETE_TOPIC_IN_BROKER.header(request).topic])
        return request.respond()

    async def delete_list(self, channel: Channel, request: Command) -> Command:
        """5002: as 215 for several topics: for none of them when one may not be deleted."""
        sent = DELETE_TOPIC_IN_BROKER_LIST.body(request).topic_list
        if not sent:
            raise _bad("topicList names no topic")
        await self._delete_users(channel, list(dict.fromkeys(sent)))
        return request.respond()

    async def _delete_users(self, channel: Channel, topics: list[str]) -> None:
        """Delete these topics of users, one after the other."""
        for topic in topics:
            check_topic(topic)
            check_topic_is_users(topic)
        for topic in topics:
            await self._delete_with_retries(topic, channel.remote)

    async def _delete_with_retries(self, topic: str, remote: str) -> None:
        async with self._removal.lock:
            existed = self._topics.get(topic) is not None
            # Find the retry topics first: the search uses the offsets of the topic, which the deletion removes. All
            # marks are written at once, so that after a kill either all of the topics are deleted, or none.
            await self._delete([*await self._retry_topics(topic), topic])
        logger.info("topic %s deleted by %s existed=%s", topic, remote, existed)

    async def delete_retry_topics(self, group: str) -> None:
        """Delete the topics in which messages come back to ``group``."""
        async with self._removal.lock:
            topics = await result_of(self._offsets.topics_of(group))
            names = [retry_topic(group), *self._pop_retry_topics((topic, group) for topic in topics)]
            if found := [name for name in names if self._topics.get(name) is not None]:
                await self._delete(found)

    async def _retry_topics(self, topic: str) -> list[str]:
        """The topics in which messages of ``topic`` come back to groups that pop."""
        groups = await result_of(self._offsets.groups_of(topic))
        return self._pop_retry_topics((topic, group) for group in groups)

    def _pop_retry_topics(self, read: Iterable[tuple[str, str]]) -> list[str]:
        """The pop retry topics of these pairs of topic and group, as far as they exist."""
        # Try both forms of the name: the option that chooses the form may have changed since the topic was made.
        names = [pop_retry_topic(topic, group, retry) for topic, group in read for retry in (RETRY_V1, RETRY_V2)]
        # The pop retry topic of group "a" and topic "b" has the name of the retry topic of group "a_b".
        return [
            name
            for name in dict.fromkeys(names)
            if self._topics.get(name) is not None and self._groups.get(name.removeprefix(RETRY_PREFIX)) is None
        ]

    async def _delete(self, topics: list[str]) -> None:
        try:
            await self._removal.delete(topics)
        except (OSError, StoreError) as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{_UNFINISHED}: {error}") from error

    def _refuse_unfinished(self, topic: str) -> None:
        if self._topics.deletions.is_unfinished(topic):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"topic {topic} cannot be made: {_UNFINISHED}")

    async def delete_queues(self, topic: str) -> bool:
        """Remove the queues of a topic unless it exists; returns whether they were removed."""
        async with self._removal.lock:
            if self._topics.get(topic) is not None:
                return False
            await self._delete([topic])
        return True

    def get_all(self, channel: Channel, request: Command) -> Steps[Command]:
        """21: all topics, or some of them: as many as a RocketMQ 5 slave asks for, or a page for a Skylark slave."""
        header = GET_ALL_TOPIC_CONFIG.header(request)
        every, version = self._topics.all(), self._topics.data_version
        table = some_rows(every, header.topic_seq, header.max_topic_num)
        deletions, drain, static = None, None, self._topics.static.all()
        page_from = PageRequestHeader.from_ext(request.ext).page_from  # only a Skylark slave asks for pages
        if page_from == 0:
            deletions, drain = self._topics.deletions.finished() or None, list(self._topics.drain.value)
        elif page_from is not None:
            static = {}
        answer = yield from answer_whole_or_page(
            GET_ALL_TOPIC_CONFIG,
            channel,
            request,
            table,
            self._cursor,
            self._topics.removals,
            lambda rows: TopicConfigTable(version, dict(rows), version, static, topic_deletions=deletions, drain=drain),
        )
        if table is not every:
            answer.ext = GetAllTopicConfigResponseHeader(len(every)).to_ext()
        return answer

    def get(self, channel: Channel, request: Command) -> Command:
        """351: one topic's settings, and its mapping when the topic is static and the request asks for that."""
        header = GET_TOPIC_CONFIG.header(request)
        config = self._topics.get(header.topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic}")
        mapping = self._topics.static.get(header.topic) if header.lo else None
        return answer_with(GET_TOPIC_CONFIG, request, TopicConfigAndMapping.of(config, mapping))

    def get_system(self, channel: Channel, request: Command) -> Steps[Command]:
        """305: the names of the system topics."""
        found: list[str] = []
        for part in slices(self._topics.names(), NAMES):
            found += [name for name in part if self._topics.is_system(name) or is_system_topic(name)]
            yield None
        return answer_with(GET_SYSTEM_TOPIC_LIST_FROM_BROKER, request, TopicList(found))

    def _changed(self, sent: TopicConfig, changes: Mapping[str, str | None]) -> TopicConfig:
        """As `_checked`; the queues of a static topic change only together with its mapping."""
        name, known = sent.topic_name, self._topics.get(sent.topic_name)
        is_static = known is not None and self._topics.static.get(name) is not None
        queues = sent.read_queue_nums, sent.write_queue_nums
        if known is not None and is_static and queues != (known.read_queue_nums, known.write_queue_nums):
            raise _bad(f"topic {name} is static: mqadmin updateStaticTopic and remappingStaticTopic set its queues")
        return self._checked(sent, changes)

    def _checked(self, sent: TopicConfig, changes: Mapping[str, str | None]) -> TopicConfig:
        """The topic as it is stored: ``sent``, with the present attributes and ``changes`` of them."""
        name = sent.topic_name
        check_topic(name)
        check_topic_is_users(name)
        for number in (sent.read_queue_nums, sent.write_queue_nums):
            if not 0 <= number <= MAX_QUEUE_NUMS:
                raise _bad(f"a topic has 0 to {MAX_QUEUE_NUMS} queues, not {number}")
        if not 0 <= sent.perm <= MAX_PERM:
            raise _bad(f"perm is 0 to {MAX_PERM}, not {sent.perm}")
        known = self._topics.get(name)
        try:
            attributes = changed_attributes(known.attributes if known else None, changes)
        except ValueError as error:
            raise _bad(str(error)) from None
        return replace(sent, attributes=attributes)


def _sent(header: CreateTopicRequestHeader) -> tuple[TopicConfig, dict[str, str | None]]:
    """The topic, and the changes of its attributes."""
    try:
        filter_type = TOPIC_FILTER_TYPE.read(header.topic_filter_type)
        changes = parse_attribute_changes(header.attributes)
    except ValueError as error:
        raise _bad(str(error)) from None
    config = TopicConfig(
        header.topic,
        header.read_queue_nums,
        header.write_queue_nums,
        header.perm,
        filter_type,
        header.topic_sys_flag or 0,
        header.order,
    )
    return config, changes


def _bad(reason: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, reason)
