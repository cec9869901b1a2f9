"""Subscription groups, as administrators see them: 200, 201, 207, 225, 352, 5003.

A change is answered when it is on disk. Neighbours: meta/groups.py; meta/client_handlers.py knows who is connected.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from skylark.broker.meta.groups import PRIORITY_FACTOR
from skylark.broker.meta.metadata import Metadata
from skylark.broker.meta.table import Durable, refused_when_not_stored
from skylark.broker.meta.table_pages import Cursor, answer_whole_or_page, some_rows
from skylark.broker.observe.stats import BrokerStats
from skylark.broker.part import Part
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.names import can_have_retry_topic, check_group
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, SlowHandler
from skylark.remoting.net.steps import StepHandler, Steps, run_slices
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.groups import (
    DELETE_SUBSCRIPTION_GROUP_LIST,
    DELETE_SUBSCRIPTIONGROUP,
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    GET_SUBSCRIPTIONGROUP_CONFIG,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    GetAllSubscriptionGroupResponseHeader,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)

logger = logging.getLogger(__name__)


class GroupHandlers(Part):
    """Handles the requests about subscription groups."""

    def __init__(
        self, metadata: Metadata, stats: BrokerStats, durable: Durable, end_retries: Callable[[str], Awaitable[None]]
    ) -> None:
        """``end_retries``: see `delete`."""
        self._end_retries = end_retries
        self._groups = metadata.groups
        self._offsets = metadata.consumer_offsets
        self._stats = stats
        self._durable = durable
        self._cursor = Cursor()

    def handlers(self) -> dict[int, Handler]:
        return {
            GET_SUBSCRIPTIONGROUP_CONFIG.code: self.get,
        }

    def step_handlers(self) -> dict[int, StepHandler]:
        return {GET_ALL_SUBSCRIPTIONGROUP_CONFIG.code: self.get_all}

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {
            UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.code: self.update,
            UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.code: self.update_list,
            DELETE_SUBSCRIPTIONGROUP.code: self.delete,
            DELETE_SUBSCRIPTION_GROUP_LIST.code: self.delete_list,
        }

    async def update(self, channel: Channel, request: Command) -> Command:
        """200: create or change a group."""
        return await self._put(channel, request, [UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.body(request)])

    async def update_list(self, channel: Channel, request: Command) -> Command:
        """225: create or change several groups: all of them, or none when one is refused."""
        sent = UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.body(request).group_config_list
        if not sent:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "groupConfigList names no group")
        return await self._put(channel, request, sent)

    async def _put(self, channel: Channel, request: Command, sent: list[SubscriptionGroupConfig]) -> Command:
        configs = [self._checked(config) for config in sent]
        with refused_when_not_stored():
            for config in configs:
                if config != self._groups.get(config.group_name):
                    self._groups.put(config)
                    logger.info("group %s set by %s: %s", config.group_name, channel.remote, config)
            await self._durable()
        return request.respond()

    def _checked(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """The group as it is stored: the attributes that were sent are changes of the present ones."""
        check_group(config.group_name)
        # An existing group may be changed even if its name is too long for a retry topic.
        known = self._groups.get(config.group_name)
        if known is None and not can_have_retry_topic(config.group_name):
            text = f"the name of a group with {len(config.group_name)} characters is too long for its retry topic"
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
        attributes = _attributes(known.attributes if known else {}, config.attributes)
        factor = attributes.get(PRIORITY_FACTOR, "100")
        if not (factor.isascii() and factor.isdigit() and len(factor) <= 3 and int(factor) <= 100):
            text = f"{PRIORITY_FACTOR} is {factor!r}, it must be 0 to 100 percent"
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
        return replace(config, attributes=attributes)

    async def delete(self, channel: Channel, request: Command) -> Command:
        """207: delete the group; if the request says so, also its offsets and its pending retries.

        If the offsets stay, a group of this name continues where the old group was, and also gets its retries. If the
        offsets go, the next group of this name is a new group. Then ``end_retries`` removes the retry topics; retries
        that wait in delay levels are dropped, and no message that is in flight by a pop comes back. Dead letters stay.
        """
        header = DELETE_SUBSCRIPTIONGROUP.header(request)
        clean = bool(header.clean_offset or header.remove_offset)
        await self._delete(channel, [header.group_name], clean=clean)
        return request.respond()

    async def delete_list(self, channel: Channel, request: Command) -> Command:
        """5003: as 207 for several groups."""
        sent = DELETE_SUBSCRIPTION_GROUP_LIST.body(request)
        if not sent.group_name_list:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "groupNameList names no group")
        await self._delete(channel, list(dict.fromkeys(sent.group_name_list)), clean=sent.clean_offset)
        return request.respond()

    async def _delete(self, channel: Channel, names: list[str], *, clean: bool) -> None:
        with refused_when_not_stored():
            for name in names:
                if clean:
                    # End the retries first: this may be refused, and finds the retry topics by the offsets. After a
                    # failure the request can be repeated.
                    await self._end_retries(name)
                existed = self._groups.delete(name)
                if clean:
                    await run_slices(self._offsets.remove_group(name))
                self._stats.drop_group(name)
                logger.info("group %s deleted by %s existed=%s offsets=%s", name, channel.remote, existed, clean)
            await self._durable()

    def get_all(self, channel: Channel, request: Command) -> Steps[Command]:
        """201: all groups, or some of them: as many as a RocketMQ 5 slave asks for, or a page for a Skylark slave."""
        header = GET_ALL_SUBSCRIPTIONGROUP_CONFIG.header(request)
        every, version = self._groups.all(), self._groups.data_version
        table = some_rows(every, header.group_seq, header.max_group_num)
        answer = yield from answer_whole_or_page(
            GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            channel,
            request,
            table,
            self._cursor,
            self._groups.removals,
            lambda rows: SubscriptionGroupTable(dict(rows), self._groups.forbidden, version),
        )
        if table is not every:
            answer.ext = GetAllSubscriptionGroupResponseHeader(len(every)).to_ext()
        return answer

    def get(self, channel: Channel, request: Command) -> Command:
        """352: one group's settings; the group is created where that is allowed, as in RocketMQ."""
        group = GET_SUBSCRIPTIONGROUP_CONFIG.header(request).group
        config = self._groups.get_or_create(group)
        if config is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {group}")
        return answer_with(GET_SUBSCRIPTIONGROUP_CONFIG, request, config)


def _attributes(current: dict[str, str], sent: dict[str, str]) -> dict[str, str]:
    """The attributes after a change. ``+key`` sets a key and ``-key`` removes it.

    Keys without a sign come from older tools, which send back all attributes that they read.
    """
    result = dict(current)
    for key, value in sent.items():
        if key.startswith("-"):
            result.pop(key[1:], None)
        else:
            result[key.removeprefix("+")] = value
    return result
