"""Sends the topics of this broker to one NameServer: all of them, or the changes since the last registration.

Skylark's NameServers say that they take parts: they get a large set in parts of PART_TOPICS, and after that only
changes. A RocketMQ NameServer gets all topics in one frame each time, compressed if they do not fit otherwise. Topics
that do not fit even when compressed are left out, with an error in the log. Large sets are encoded in a thread.
NameServers keep nothing on disk. So each broker keeps the names of the other brokers of its cluster, as NameServers
report them, and registers these names: a restarted NameServer knows at once which brokers are missing, and says so in
routes. Invariant: changes are only sent on the connection on which the previous version was sent. A NameServer forgets
a broker when its connection closes, so on a new connection the changes would have no base.
Neighbours: registrar.py decides when to send; outer_api.py has the request; namesrv/registration.py is the other side.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import trio

from skylark.broker.meta.topics import Topics
from skylark.broker.options import BrokerOptions
from skylark.broker.registration.outer_api import OuterApi, RegisterAnswer, RegistrationPart, ToldBrokers
from skylark.broker.replication.known_master import MasterAddress
from skylark.mqcommon.errors import FrameTooLarge, ProtocolError, StoreError
from skylark.mqcommon.names import AUTO_CREATE_TOPIC, PERM_READ_WRITE
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.command import VERSION
from skylark.remoting.protocol.dialect import encode_body
from skylark.remoting.protocol.requests.registrations import (
    MAX_KNOWN_BROKERS,
    RegisterBrokerBody,
    encode_compressed,
    names_crc,
)
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicConfigTable, TopicQueueMappingInfo

logger = logging.getLogger(__name__)

# A part costs both sides some milliseconds.
PART_TOPICS = 500
# Kept free for the header of a registration.
HEADER_BYTES = 4_096
# The size of a topic in JSON without its name, which appears twice.
TOPIC_BYTES = 200


class Registration:
    """The registration of one broker with one NameServer."""

    def __init__(self, namesrv: OuterApi, topics: Topics, options: BrokerOptions) -> None:
        self._namesrv = namesrv
        self._topics = topics
        self._options = options
        #: The version that was sent on the present connection.
        self.version: DataVersion | None = None
        self._changes_sent = 0
        self._has_left_out = False
        # How often `forget` was called.
        self._forgotten = 0

    def forget(self) -> None:
        """Send all topics next time: the connection is gone, or this broker has another id now."""
        self._forgotten += 1
        self.version = None
        self._namesrv.takes_parts = False

    async def send(self) -> MasterAddress | None:
        """Send the present topics; returns the master's address, for a slave."""
        # The version from before the send, so that topics which change while parts are sent are sent again.
        version, changes, forgotten = self._topics.data_version, self._topics.changes.count, self._forgotten
        registered = await self._send(version)
        if registered.whole_needed:
            raise ProtocolError(f"NameServer {self._namesrv.addr} did not take the parts of a registration")
        if registered.told is not None:
            self._keep_names(registered.told)
        # If it differs, the connection was lost, or the role changed, while the answer was on its way.
        if forgotten == self._forgotten:
            self.version, self._changes_sent = version, changes
        return registered.master

    async def is_outdated(self) -> bool:
        """Whether the NameServer must be sent all topics again, or the names of other brokers."""
        own_name, known = self._options.broker_name, self._topics.known_brokers
        crc = names_crc({own_name, *known.value}) if self._namesrv.takes_parts else None
        answer = await self._namesrv.ask(self._topics.data_version, crc)
        if answer.told is None:
            return answer.must_register
        self._keep_names(answer.told)
        # This NameServer must also know the brokers that other NameServers have reported.
        return answer.must_register or not set(known.value).issubset(answer.told.known)

    def _keep_names(self, told: ToldBrokers) -> None:
        """Add reported broker names to the cluster's; a name is removed only when its broker is gone for good."""
        known = self._topics.known_brokers
        names = {*known.value, *told.known}.difference(told.gone, (self._options.broker_name,))
        try:
            known.put(tuple(sorted(names)[:MAX_KNOWN_BROKERS]))
        except StoreError as error:
            # The broker stays registered all the same; NameServers will report the names again.
            logger.warning("the names of other brokers are not on disk: %s", error)

    async def _send(self, version: DataVersion) -> RegisterAnswer:
        namesrv = self._namesrv
        # While parts are on their way, no version counts as sent: if sending fails half-way, the next call sends all
        # topics.
        base, self.version = self.version, None
        if base is not None and namesrv.takes_parts and not self._options.force_register:
            changed = self._topics.changes.since(self._changes_sent)
            if changed is not None:
                registered = await self._send_parts(changed, version, base)
                if not registered.whole_needed:
                    return registered
        names = self._topics.names()
        if len(names) <= PART_TOPICS:
            try:
                return await namesrv.register(self._body(names, version))
            except FrameTooLarge as error:
                logger.info("topics for NameServer %s do not fit into one frame: %s", namesrv.addr, error)
        if not namesrv.takes_parts:
            await namesrv.ask(version)  # its answer says whether it takes parts
        if namesrv.takes_parts:
            return await self._send_parts(names, version, None)
        return await self._send_in_one(names, version)

    async def _send_parts(self, names: Sequence[str], version: DataVersion, base: DataVersion | None) -> RegisterAnswer:
        """Send ``names``, which are all topics or the topics that changed since ``base``.

        TBW102 is sent last: a client that finds TBW102, but not the topic that it asked for, takes that topic for new.
        """
        left, number, size = sorted(reversed(names), key=lambda name: name != AUTO_CREATE_TOPIC), 0, PART_TOPICS
        told: ToldBrokers | None = None
        while True:
            chunk = left[-size:]
            body = self._body(chunk, version)
            body.removed_topics = [name for name in chunk if self._topics.get(name) is None]
            if number:
                body.known_brokers = None  # only the first part and its answer carry the names
            try:
                registered = await self._namesrv.register(body, RegistrationPart(number, len(chunk) == len(left), base))
            except FrameTooLarge as error:
                # Send smaller parts from here on. A topic that does not fit alone is left out, with an error in the
                # log.
                if not chunk:
                    raise
                if len(chunk) == 1:
                    logger.error("topic %s cannot be registered: %s", left.pop(), error)
                size = max(1, len(chunk) // 2)
                continue
            told = told or registered.told
            if registered.whole_needed or len(chunk) == len(left):
                return registered._replace(told=told)
            del left[-size:]
            number += 1

    async def _send_in_one(self, names: Sequence[str], version: DataVersion) -> RegisterAnswer:
        wrapper = self._body(names, version).topic_config_serialize_wrapper
        configs, static = list(wrapper.topic_config_table.values()), wrapper.topic_queue_mapping_info_map
        limit = self._options.frame_max_length
        made = await trio.to_thread.run_sync(encode_in_one, configs, version, limit - HEADER_BYTES, static)
        if made.left_out and not self._has_left_out:
            logger.error(
                "%d of %d topics are not registered at NameServer %s: they do not fit into a frame of %d bytes. Use"
                " Skylark's NameServers, which take topics in parts, or raise frameMaxLength here and"
                " -Dcom.rocketmq.remoting.frameMaxLength there",
                made.left_out,
                len(configs),
                self._namesrv.addr,
                limit,
            )
        self._has_left_out = made.left_out > 0
        return await self._namesrv.register_encoded(made.data, is_compressed=made.is_compressed)

    def _body(self, names: Sequence[str], version: DataVersion) -> RegisterBrokerBody:
        """The existing topics of ``names``, their permissions limited by ``brokerPermission``."""
        perm = self._topics.registered_perm
        table = {name: config for name in names if (config := self._topics.get(name)) is not None}
        if perm & PERM_READ_WRITE != PERM_READ_WRITE:
            table = {name: replace(config, perm=config.perm & perm) for name, config in table.items()}
        static = self._topics.static.registered(table)
        return RegisterBrokerBody(
            TopicConfigTable(version, table, version, {}, static),
            known_brokers=list(self._topics.known_brokers.value) or None,
            is_drained=bool(self._topics.drain.value.since_ms) or None,
        )


class InOne(NamedTuple):
    """A registration in one frame, and how many topics did not fit."""

    data: bytes
    is_compressed: bool
    left_out: int


def encode_in_one(
    configs: Sequence[TopicConfig],
    version: DataVersion,
    limit: int,
    static: Mapping[str, TopicQueueMappingInfo] | None = None,
) -> InOne:
    """As many of ``configs`` as fit into ``limit`` bytes, in RocketMQ's plain form if all of them fit.

    The compressed form has neither order nor topicSysFlag, and attributes are left out, since NameServers need none.
    """
    if sum(2 * len(config.topic_name) + TOPIC_BYTES for config in configs) <= limit:
        data = encode_body(_whole(configs, version, static))
        if len(data) <= limit:
            return InOne(data, False, 0)
    count = len(configs)
    while True:
        data = encode_compressed(_whole(configs[:count], version, static), VERSION, attributes=False)
        if len(data) <= limit or not count:
            return InOne(data, True, len(configs) - count)
        # Estimate in proportion to the size, less 2 %: topics differ in size, and each try encodes all topics again.
        count = min(count - 1, count * limit // len(data) * 49 // 50)


def _whole(
    configs: Sequence[TopicConfig], version: DataVersion, static: Mapping[str, TopicQueueMappingInfo] | None
) -> RegisterBrokerBody:
    table = {config.topic_name: config for config in configs}
    infos = {name: info for name, info in (static or {}).items() if name in table}
    return RegisterBrokerBody(TopicConfigTable(version, table, version, {}, infos))
