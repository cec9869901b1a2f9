"""Clients: heartbeats (34), leaving (35), members of a group (38, 203, 204, 328).

When the members of a consumer group change, all of them get a notice (40), so that they rebalance the group's queues.
The first change is sent at once. Changes within the next WINDOW_S are sent together at its end: 1,500 members that join
one after another cause a few rounds of notices, not 1,500. The notices of one turn of the event loop are limited.
Neighbours: clients.py (the members); admin/forwarded.py (what clients are asked).
"""

import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress

import trio

from skylark.broker.meta.clients import (
    FEW_CHARS,
    FEW_GROUPS,
    MAX_CHARS_OF_CONNECTION,
    MAX_GROUPS_OF_CONNECTION,
    Clients,
    Member,
)
from skylark.broker.meta.groups import Groups
from skylark.broker.meta.proxied_clients import Proxied, ProxiedClients
from skylark.broker.meta.table import refused_when_not_stored
from skylark.broker.meta.topics import Topics
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Callers, Part
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import DiskFull, RequestRefused
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.answers import answer_steps, answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.net.steps import StepHandler, Steps, slices
from skylark.remoting.protocol.bounded_body import BodyLimits
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import LANGUAGES, OTHER_LANGUAGE, Command
from skylark.remoting.protocol.requests.clients import (
    GET_ALL_PRODUCER_INFO,
    GET_CONSUMER_CONNECTION_LIST,
    GET_CONSUMER_LIST_BY_GROUP,
    GET_PRODUCER_CONNECTION_LIST,
    HEART_BEAT,
    NOTIFY_CONSUMER_IDS_CHANGED,
    QUERY_SUBSCRIPTION_BY_CONSUMER,
    UNREGISTER_CLIENT,
    Connection,
    ConsumerConnection,
    ConsumerData,
    HeartbeatData,
    HeartbeatResponseHeader,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QuerySubscriptionResponseBody,
)
from skylark.remoting.protocol.requests.groups import (
    ConsumerIdList,
    NotifyConsumerIdsChangedRequestHeader,
    SubscriptionGroupConfig,
)
from skylark.remoting.protocol.requests.topics import TOPIC_UNIT_SUB

logger = logging.getLogger(__name__)

WINDOW_S = 0.2
# Notices in one turn of the event loop: each costs about 10 µs.
SLICE = 500
# Limits of one heartbeat, which is handled in one piece: about 20 ms at most.
HEARTBEAT = BodyLimits(max_bytes=512 * 1024, max_entries=20_000)
MAX_GROUPS = 1_000
MAX_EXPRESSIONS = 65_536
MAX_CLIENT_ID = 1_024
# The longest name of a group or topic. The longest of all is the retry topic that a client makes of a group's name.
MAX_NAME = 512
LIMITS = (
    f"a connection may be in {MAX_GROUPS_OF_CONNECTION} groups with {MAX_CHARS_OF_CONNECTION} characters of"
    f" subscriptions, and in {FEW_GROUPS} with {FEW_CHARS} while all clients together have more than this broker keeps"
)
# Creating a group and its retry topic takes about 100 µs.
MAX_NEW_GROUPS = 50
# Members that are listed in one step.
MEMBERS = 1_000
# The most groups with different subscriptions that one answer names, and that one tick logs.
MAX_DIVIDED = 20


class ClientHandlers(Part):
    """Handles heartbeats and requests for the members of groups."""

    tick_interval_ms = 10_000

    def __init__(
        self,
        clients: Clients,
        proxied: ProxiedClients,
        topics: Topics,
        groups: Groups,
        options: BrokerOptions,
        clock: Clock,
        callers: Callers | None = None,
    ) -> None:
        self._callers = callers
        self._clients = clients
        self._proxied = proxied
        self._topics = topics
        self._groups = groups
        self._options = options
        self._clock = clock
        self.notices = MemberNotices(clients, groups, options)
        # Groups that were logged because their members have different subscriptions.
        self._divided: dict[str, None] = {}

    def handlers(self) -> dict[int, Handler]:
        return {
            HEART_BEAT.code: self.heartbeat,
            UNREGISTER_CLIENT.code: self.unregister,
            GET_CONSUMER_LIST_BY_GROUP.code: self.consumer_ids,
            QUERY_SUBSCRIPTION_BY_CONSUMER.code: self.subscription,
        }

    def step_handlers(self) -> dict[int, StepHandler]:
        return {
            GET_CONSUMER_CONNECTION_LIST.code: self.consumer_connections,
            GET_PRODUCER_CONNECTION_LIST.code: self.producer_connections,
            GET_ALL_PRODUCER_INFO.code: self.all_producers,
        }

    # --- coming and going

    def heartbeat(self, channel: Channel, request: Command) -> Command:
        """34: join the groups that the heartbeat names; unknown groups are created where that is allowed."""
        data = HEART_BEAT.body(request, HEARTBEAT)
        _check_heartbeat(data)
        user, now_ms = "", self._clock.monotonic_ms()
        if self._callers is not None:
            user = self._callers.user_of(channel, request)
            _check_owner(data.client_id, user, self._clients.user_of(data.client_id, now_ms))
        language = request.language if request.language in LANGUAGES else OTHER_LANGUAGE
        fingerprint_changed = False
        changed = []
        new_groups = 0
        left_out: list[str] = []
        try:
            for consumer in data.consumer_data_set:
                name = consumer.group_name
                if self._groups.get(name) is None and not self._groups.is_mirror:
                    new_groups += 1
                # A client becomes a member of all its groups at once, because it looks itself up right after this. Only
                # the creation of groups is limited per heartbeat: first pulls or later heartbeats create the rest.
                if not self._clients.may_consume(channel, consumer):
                    left_out.append(name)
                    continue
                if new_groups > MAX_NEW_GROUPS:
                    may_join = self._groups.may_be_used(name)
                else:
                    may_join = self.prepared_group(consumer) is not None
                if not may_join:
                    continue  # a group that must be made with mqadmin first; its pulls are answered with an error
                if self._clients.join_consumer_group(channel, data, consumer, language, request.version, now_ms, user):
                    changed.append(name)
                if data.heartbeat_fingerprint:
                    fingerprint_changed |= self._clients.fingerprint_changed(name, data.heartbeat_fingerprint)
        finally:
            # Notify even if a later group of the heartbeat is refused: the groups before it already have a new member,
            # with whom their members must share the queues.
            self.notices.changed(changed)
        for producer in data.producer_data_set:
            if not self._clients.may_produce(channel, producer.group_name):
                left_out.append(producer.group_name)
                continue
            self._clients.join_producer_group(
                channel, data, producer.group_name, language, request.version, now_ms, user
            )
        if left_out:
            text = f"{len(left_out)} groups have no room here, such as {left_out[0]}: {LIMITS}"
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
        # True asks the client for its subscriptions, which heartbeats with a known fingerprint leave out. RocketMQ
        # sends True to every client whose heartbeats have no fingerprint.
        sub_change = fingerprint_changed if data.heartbeat_fingerprint else True
        header = HeartbeatResponseHeader(
            is_support_heart_beat_v2=True, is_sub_change=sub_change, subscription_differences=self._differences_of(data)
        )
        return HEART_BEAT.answer(request, header)

    def _differences_of(self, data: HeartbeatData) -> str | None:
        """A line for each group of the client whose members have different subscriptions; None without such groups."""
        lines = []
        for consumer in data.consumer_data_set:
            group = self._clients.consumer_group(consumer.group_name)
            if group is not None and data.client_id in group.wanted and group.differences:
                lines.append(f"{group.name} {group.differences}")
        return "\n".join(lines[:MAX_DIVIDED]) or None

    def unregister(self, channel: Channel, request: Command) -> Command:
        """35: leave a producer group, a consumer group, or both; an empty name stands for no group."""
        header = UNREGISTER_CLIENT.header(request)
        if header.producer_group:
            self._clients.leave_producer_group(channel, header.producer_group)
        if header.consumer_group and self._clients.leave_consumer_group(channel, header.consumer_group):
            self.notices.changed([header.consumer_group])
        return request.respond(ext={})

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send waiting notices, until cancelled."""
        task_status.started()
        await self.notices.run()

    def channel_closed(self, channel: Channel) -> None:
        """Remove the client from its groups, and notify the members that stay."""
        self.notices.changed(self._clients.close(channel))

    def tick(self) -> None:
        """Close the connections of clients without heartbeats, and log groups with different subscriptions."""
        timeout_ms = self._options.channel_expired_timeout
        for channel in self._clients.expired_channels(self._clock.monotonic_ms(), timeout_ms):
            logger.info("connection of client %s closed: no heartbeat in time", channel.remote)
            channel.close("no heartbeat in time")
            # Leave the groups now, so that other members take over the queues at once. When the connection has ended,
            # `channel_closed` is called again and finds no group.
            self.channel_closed(channel)
        self._log_divided()

    def _log_divided(self) -> None:
        """Log each group once when its members begin to have different subscriptions, and once when that ends."""
        found = {group.name: group for group in self._clients.divided_groups()}
        for name in [name for name in self._divided if name not in found]:
            del self._divided[name]
            logger.info("the members of group %s have the same subscriptions again", name)
        for name in [name for name in found if name not in self._divided][:MAX_DIVIDED]:
            self._divided[name] = None
            logger.warning(
                "the members of group %s have different subscriptions, so some messages reach nobody: %s; give all "
                "members the same subscriptions, or each kind of consumer a group of its own",
                name,
                found[name].differences,
            )

    # --- members of groups

    def consumer_ids(self, channel: Channel, request: Command) -> Command:
        """38: the client ids of a consumer group's members, which share the queues."""
        name = GET_CONSUMER_LIST_BY_GROUP.header(request).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return answer_with(GET_CONSUMER_LIST_BY_GROUP, request, ConsumerIdList(group.client_ids()))

    def consumer_connections(self, channel: Channel, request: Command) -> Steps[Command]:
        """203: a consumer group's members with their connections, including proxies' members, and its subscriptions."""
        name = GET_CONSUMER_CONNECTION_LIST.header(request).consumer_group
        group = self._clients.consumer_group(name)
        proxied = self._proxied.consumers(name)
        if group is None and not proxied:
            raise RequestRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        listed = yield from _connections([] if group is None else group.members.values())
        listed += yield from _proxied_connections([member for member, _ in proxied])
        subscriptions = {each.topic: each for _, data in proxied for each in data.subscription_data_set}
        if group is None:
            _, data = proxied[0]
            body = ConsumerConnection(
                listed, subscriptions, data.consume_type, data.message_model, data.consume_from_where
            )
        else:
            body = ConsumerConnection(
                listed,
                {**subscriptions, **group.subscriptions},
                group.consume_type,
                group.message_model,
                group.consume_from_where,
            )
        return (yield from answer_steps(GET_CONSUMER_CONNECTION_LIST, request, body, channel.max_frame_bytes))

    def subscription(self, channel: Channel, request: Command) -> Command:
        """345: a group's subscription to one topic, as members connected to this broker or a proxy report it."""
        asked = QUERY_SUBSCRIPTION_BY_CONSUMER.header(request)
        found = self._clients.subscription(asked.group, asked.topic) or next(
            (
                each
                for _, data in self._proxied.consumers(asked.group)
                for each in data.subscription_data_set
                if each.topic == asked.topic
            ),
            None,
        )
        body = QuerySubscriptionResponseBody(asked.group, asked.topic, found)
        return answer_with(QUERY_SUBSCRIPTION_BY_CONSUMER, request, body)

    def producer_connections(self, channel: Channel, request: Command) -> Steps[Command]:
        """204: a producer group's members with their connections, including members at proxies."""
        name = GET_PRODUCER_CONNECTION_LIST.header(request).producer_group
        members, proxied = self._clients.producers(name), self._proxied.producers(name)
        if not members and not proxied:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        listed = yield from _connections(members)
        listed += yield from _proxied_connections(proxied)
        body = ProducerConnection(listed)
        return (yield from answer_steps(GET_PRODUCER_CONNECTION_LIST, request, body, channel.max_frame_bytes))

    def all_producers(self, channel: Channel, request: Command) -> Steps[Command]:
        """328: the producers of all groups."""
        behind_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        table: dict[str, list[ProducerInfo]] = {}
        for part in slices(self._clients.all_producers(), MEMBERS):
            for group, one, heard_ms in part:
                info = ProducerInfo(one.client_id, one.channel.remote, one.language, one.version, heard_ms + behind_ms)
                table.setdefault(group, []).append(info)
            yield None
        for number, (group, each) in enumerate(self._proxied.all_producers(), 1):
            client = each.client
            info = ProducerInfo(
                client.client_id, client.client_addr, client.language, client.version, each.heard_ms + behind_ms
            )
            table.setdefault(group, []).append(info)
            if number % MEMBERS == 0:
                yield None
        body = ProducerTableInfo(table)
        return (yield from answer_steps(GET_ALL_PRODUCER_INFO, request, body, channel.max_frame_bytes))

    # --- inside

    def prepared_group(self, consumer: ConsumerData) -> SubscriptionGroupConfig | None:
        """The group of a consumer, with its retry topic; None when it does not exist and may not be created."""
        with refused_when_not_stored():
            config = self._groups.get_or_create(consumer.group_name)
            if config is not None and consumer.message_model != "BROADCASTING" and config.retry_queue_nums > 0:
                sys_flag = TOPIC_UNIT_SUB if consumer.unit_mode else 0
                with suppress(DiskFull):  # the group can read without it; a later heartbeat creates it
                    self._topics.create_retry_topic(consumer.group_name, config.retry_queue_nums, sys_flag)
        return config


class MemberNotices:
    """Sends 40 to the members of groups that changed, at most once per WINDOW_S. Times are trio's, in seconds."""

    def __init__(self, clients: Clients, groups: Groups, options: BrokerOptions) -> None:
        self._clients = clients
        self._groups = groups
        self._options = options
        # Groups that were notified less than WINDOW_S ago; and when the window of each ends, oldest first.
        self._quiet: set[str] = set()
        self._quiet_until: deque[tuple[float, str]] = deque()
        # Quiet groups whose members changed during their window.
        self._again: set[str] = set()
        # Groups to notify in the next turns of the event loop: an ordered set.
        self._ready: dict[str, None] = {}
        self._wake = Signal()

    def changed(self, groups: Iterable[str]) -> None:
        """Notify the members of ``groups``, because the members or their subscriptions have changed."""
        if not self._options.notify_consumer_ids_changed_enable:
            return
        for name in groups:
            group = self._clients.consumer_group(name)
            if group is None:
                continue
            # A group within its window is only remembered, and notified once when the window ends. The notices of a
            # large group are left to the task, which sends them in slices. All other notices go out in this turn.
            if name in self._quiet:
                self._again.add(name)
            elif len(group.members) > SLICE:
                self._ready[name] = None
                self._wake.set()
            else:
                for _ in self._notify(name):
                    pass

    async def run(self) -> None:
        """Send waiting notices when they are due, until cancelled."""
        while True:
            self._end_windows(trio.current_time())
            while self._ready:
                name = next(iter(self._ready))
                del self._ready[name]
                for _ in self._notify(name):
                    await trio.lowlevel.checkpoint()
            with trio.move_on_at(self._quiet_until[0][0] if self._quiet_until else math.inf):
                await self._wake.wait()

    def _end_windows(self, now: float) -> None:
        # All windows are equally long, so the deque is ordered by their ends.
        while self._quiet_until and self._quiet_until[0][0] <= now:
            _, name = self._quiet_until.popleft()
            self._quiet.discard(name)
            if name in self._again:
                self._again.discard(name)
                self._ready[name] = None

    def _notify(self, name: str) -> Iterator[None]:
        """Notify the members of a group; yields after each SLICE of them."""
        config = self._groups.get(name)
        group = self._clients.consumer_group(name)
        if group is None or (config is not None and not config.notify_consumer_ids_changed_enable):
            return
        self._quiet.add(name)
        self._quiet_until.append((trio.current_time() + WINDOW_S, name))
        self._wake.set()
        header = NotifyConsumerIdsChangedRequestHeader(name)
        for number, member in enumerate(list(group.members.values()), 1):
            # JSON, whatever encoding the connection uses: all clients can read a request in JSON.
            member.channel.push(NOTIFY_CONSUMER_IDS_CHANGED.oneway(header))
            if number % SLICE == 0:
                yield


def _check_heartbeat(data: HeartbeatData) -> None:
    """RequestRefused when the client id is missing, or the heartbeat is so large that it would hold up others."""
    if not data.client_id:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, "the heartbeat has no clientID")
    if len(data.client_id) > MAX_CLIENT_ID:
        text = f"the heartbeat's clientID has {len(data.client_id)} characters, at most {MAX_CLIENT_ID} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
    groups = len(data.consumer_data_set) + len(data.producer_data_set)
    if groups > MAX_GROUPS:
        text = f"the heartbeat names {groups} groups, at most {MAX_GROUPS} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
    # One pass, as each client sends this every 30 s.
    length = longest = 0
    for producer in data.producer_data_set:
        longest = max(longest, len(producer.group_name))
    for consumer in data.consumer_data_set:
        longest = max(longest, len(consumer.group_name))
        for one in consumer.subscription_data_set:
            longest = max(longest, len(one.topic))
            length += len(one.sub_string) or sum(map(len, one.tags_set))
    if longest > MAX_NAME:
        text = f"the heartbeat has a name of {longest} characters, at most {MAX_NAME} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
    if length > MAX_EXPRESSIONS:
        text = f"the heartbeat's subscriptions have {length} characters, at most {MAX_EXPRESSIONS} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)


def _check_owner(client_id: str, user: str, owner: str | None) -> None:
    """RequestRefused when the id belongs to a client of another user: replies for that client would go astray."""
    if owner is not None and owner != user:
        text = f"the client id {client_id[:MAX_NAME]} belongs to a client of another user; take another one"
        raise RequestRefused(ResponseCode.NO_PERMISSION, text)


def _connections(members: Iterable[Member]) -> Steps[list[Connection]]:
    found: list[Connection] = []
    for part in slices(list(members), MEMBERS):
        found += [Connection(one.client_id, one.channel.remote, one.language, one.version) for one in part]
        yield None
    return found


def _proxied_connections(members: Iterable[Proxied]) -> Steps[list[Connection]]:
    found: list[Connection] = []
    for part in slices([each.client for each in members], MEMBERS):
        found += [Connection(one.client_id, one.client_addr, one.language, one.version) for one in part]
        yield None
    return found
