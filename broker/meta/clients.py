"""The connected clients, as their heartbeats report them: consumers and producers by group and connection.

The tables are in memory only.

A channel is an object for a connection, used here only as a key. Methods return whether members or subscriptions of a
group changed; the caller (meta/client_handlers.py) notifies the members.
Invariant: ``_consumer_groups_of`` and ``_producer_groups_of`` mirror the group tables; ``_heard_ms`` and ``_ids`` have
the connections of both. So the cost of closing a connection depends only on the number of its groups.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import field

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.group_subscriptions import Wanted, differences, wanted_of
from skylark.remoting.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData, parse_subscription

# A connection's groups, with the characters of its subscriptions in each (0 for a producer group).
Groups = dict[str, int]

# The most groups of one connection. A client names at most half as many in one heartbeat; groups that it has left may
# stay for a while.
MAX_GROUPS_OF_CONNECTION = 2_000
# The most members of all groups: some 600 bytes each. A connection may be in a few groups however many members there
# are, so that one client with many groups cannot keep other clients out.
MAX_MEMBERS = 100_000
FEW_GROUPS = 16
# Limits of the characters in subscriptions; each subscription also counts with the memory that it takes besides them.
MAX_CHARS_OF_CONNECTION = 1 << 20
MAX_CHARS = 64 << 20
FEW_CHARS = 16_384
CHARS_OF_SUBSCRIPTION = 200

# How long a client id is reserved for its user after the last heartbeat, and how many ids are reserved. Replies are
# routed by client id, so after a broken connection no other user may take the id. (The ids of the SDK and of RocketMQ's
# clients cannot be guessed in advance.) One user has only a part of the places, and cannot push out other users' ids.
KEPT_MS = 600_000
MAX_KEPT = 10_000
MAX_KEPT_OF_USER = 1_000

# How many groups without members keep their last subscriptions; a group with more topics or characters does not.
MAX_LEFT = 256
MAX_LEFT_TOPICS = 32
MAX_LEFT_CHARS = 4_096


@lazy_dataclass(slots=True)
class Member:
    """One client in one group."""

    channel: Channel
    client_id: str
    language: str
    version: int
    #: The user who signed the heartbeat; empty without access control.
    user: str = ""


@lazy_dataclass(slots=True)
class ConsumerGroup:
    """The members of a consumer group and their subscriptions."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[Channel, Member] = field(default_factory=dict)
    # The same by client id; a client may be a member on several connections.
    clients: dict[str, dict[Channel, Member]] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    fingerprint: int = 0
    # The subscriptions of each client that shares the queues, and the clients of each set of subscriptions; see
    # `set_wanted`. With more than one set the group loses messages.
    wanted: dict[str, Wanted] = field(default_factory=dict)
    clients_of: dict[Wanted, dict[str, None]] = field(default_factory=dict)
    _differences: str | None = None

    def client_ids(self) -> list[str]:
        return list(self.clients)

    def join(self, member: Member) -> bool:
        """Add a member, or replace it; returns whether its connection is new in this group."""
        # A client may take another id on the same connection: the former id leaves the group.
        known = self.members.get(member.channel)
        if known is not None and known.client_id != member.client_id:
            self._leave_client(known)
        self.members[member.channel] = member
        self.clients.setdefault(member.client_id, {})[member.channel] = member
        return known is None

    def leave(self, channel: Channel) -> bool:
        """Remove a member; returns whether there was one on this connection."""
        member = self.members.pop(channel, None)
        if member is None:
            return False
        self._leave_client(member)
        return True

    def _leave_client(self, member: Member) -> None:
        same = self.clients[member.client_id]
        del same[member.channel]
        if not same:
            del self.clients[member.client_id]
            self.set_wanted(member.client_id, None)

    def subscribe(self, wanted: Iterable[SubscriptionData]) -> bool:
        """Replace the group's subscriptions by a member's; returns whether topics were added or removed."""
        # The last heartbeat counts for the whole group, as in RocketMQ: members must subscribe to the same topics.
        changed, topics = False, set()
        for subscription in wanted:
            topics.add(subscription.topic)
            known = self.subscriptions.get(subscription.topic)
            if known is None:
                changed = True
            elif subscription.sub_version <= known.sub_version:
                continue
            self.subscriptions[subscription.topic] = _recomputed(subscription)
        for topic in [topic for topic in self.subscriptions if topic not in topics]:
            del self.subscriptions[topic]
            changed = True
        return changed

    def set_wanted(self, client_id: str, wanted: Wanted | None) -> None:
        """Set the client's subscriptions; None: the client has left, or chooses its queues itself."""
        before = self.wanted.get(client_id)
        if before == wanted:
            return
        self._differences = None
        if before is not None:
            same = self.clients_of[before]
            del self.wanted[client_id], same[client_id]
            if not same:
                del self.clients_of[before]
        if wanted is not None:
            self.wanted[client_id] = wanted
            self.clients_of.setdefault(wanted, {})[client_id] = None

    @property
    def differences(self) -> str:
        """A text about members whose subscriptions differ from other members'; empty when all are equal."""
        if len(self.clients_of) < 2:
            return ""
        if self._differences is None:
            self._differences = differences(self.clients_of)
        return self._differences


class Clients:
    """All connected clients of a broker. Times are in ms, of one clock, preferably a monotonic one."""

    def __init__(self) -> None:
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Channel, Member]] = {}
        self._consumer_groups_of: dict[Channel, Groups] = {}
        self._producer_groups_of: dict[Channel, Groups] = {}
        # The client id of each connection that is in a group, from its last heartbeat; and the connections of each
        # client id, with the user of each connection's last heartbeat.
        self._ids: dict[Channel, str] = {}
        self._holders: dict[str, dict[Channel, str]] = {}
        # Reserved ids, whose connections are closed: the user, and the time of the last heartbeat. Oldest first.
        self._kept: dict[str, tuple[str, int]] = {}
        self._kept_of: Counter[str] = Counter()
        # The numbers that are limited: members of all groups; characters of subscriptions, in all and by connection.
        self._members = 0
        self._chars = 0
        self._chars_of: dict[Channel, int] = {}
        # Time of the last heartbeat, for each connection that is in a group.
        self._heard_ms: dict[Channel, int] = {}
        # The last subscriptions of groups that have no member now; the group that left first is forgotten first.
        self._left: dict[str, dict[str, SubscriptionData]] = {}

    # --- reading

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """A group with at least one member."""
        return self._consumers.get(name)

    def producers(self, group: str) -> list[Member]:
        return list(self._producers.get(group, {}).values())

    def producer_channel(self, client_id: str) -> Channel | None:
        """A connection of the client with this id that has a producer; of several the latest."""
        channels = reversed(self._holders.get(client_id, {}))
        return next((channel for channel in channels if channel in self._producer_groups_of), None)

    def user_of(self, client_id: str, now_ms: int) -> str | None:
        """The user to whom a client id belongs: while a connection has it, and KEPT_MS longer. None: the id is free."""
        if (holders := self._holders.get(client_id)) is not None:
            return next(iter(holders.values()))
        user, heard_ms = self._kept.get(client_id, ("", -KEPT_MS))
        return user if user and now_ms - heard_ms < KEPT_MS else None

    def all_producers(self) -> list[tuple[str, Member, int]]:
        """The members of all producer groups: group, member, time of the last heartbeat."""
        return [
            (group, member, self._heard_ms[channel])
            for group, members in self._producers.items()
            for channel, member in members.items()
        ]

    def all_consumers(self) -> list[tuple[ConsumerGroup, Member]]:
        """The members of all consumer groups."""
        return [(group, member) for group in self._consumers.values() for member in group.members.values()]

    def consumer_groups(self) -> list[ConsumerGroup]:
        """All groups with at least one member."""
        return list(self._consumers.values())

    def divided_groups(self) -> list[ConsumerGroup]:
        """The groups whose members have different subscriptions."""
        return [group for group in self._consumers.values() if len(group.clients_of) > 1]

    def has_left(self, group: str, topic: str) -> bool:
        """Whether members of the group are connected, and none subscribes to this topic now."""
        connected = self._consumers.get(group)
        return connected is not None and bool(connected.subscriptions) and topic not in connected.subscriptions

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """The group's latest subscription to a topic."""
        members = self._consumers.get(group)
        return None if members is None else members.subscriptions.get(topic)

    def last_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """The subscription that a group without members had when its last member left, as far as it is remembered."""
        return self._left.get(group, {}).get(topic)

    def consumers_of(self, topic: str) -> list[str]:
        """Groups that are connected and subscribe to ``topic``."""
        return [name for name, group in self._consumers.items() if topic in group.subscriptions]

    def subscriptions(self) -> list[tuple[str, str]]:
        """Each connected group with each topic that it subscribes to, without groups whose offsets are at clients."""
        return [
            (name, topic)
            for name, group in self._consumers.items()
            if group.message_model != "BROADCASTING"
            for topic in group.subscriptions
        ]

    def find(self, group: str, client_id: str) -> Member | None:
        """The member of a consumer group with this client id."""
        members = self._consumers.get(group)
        if members is None:
            return None
        return next(iter(members.clients.get(client_id, {}).values()), None)

    def client_id(self, channel: Channel) -> str | None:
        """The id of the client on this connection, if it has sent a heartbeat."""
        return self._ids.get(channel)

    # --- joining

    def may_produce(self, channel: Channel, group: str) -> bool:
        """Whether the limits let the connection join a producer group, or stay in it."""
        return group in self._producer_groups_of.get(channel, ()) or self._may_join(channel)

    def may_consume(self, channel: Channel, data: ConsumerData) -> bool:
        """Whether the limits let the connection join a consumer group, or stay in it, with these subscriptions."""
        known = self._consumer_groups_of.get(channel, {}).get(data.group_name)
        if known is None and not self._may_join(channel):
            return False
        more = _chars(data) - (known or 0)
        of_connection = self._chars_of.get(channel, 0) + more
        is_few = more <= 0 or of_connection <= FEW_CHARS
        return is_few or (of_connection <= MAX_CHARS_OF_CONNECTION and self._chars + more <= MAX_CHARS)

    def _may_join(self, channel: Channel) -> bool:
        groups = len(self._producer_groups_of.get(channel, ())) + len(self._consumer_groups_of.get(channel, ()))
        return groups < FEW_GROUPS or (groups < MAX_GROUPS_OF_CONNECTION and self._members < MAX_MEMBERS)

    def join_consumer_group(
        self,
        channel: Channel,
        heartbeat: HeartbeatData,
        data: ConsumerData,
        language: str,
        version: int,
        now_ms: int,
        user: str = "",
    ) -> bool:
        """Apply a heartbeat's part about one consumer group; returns whether members or subscriptions changed."""
        group = self._consumers.get(data.group_name)
        if group is None:
            group = self._consumers[data.group_name] = ConsumerGroup(data.group_name)
            self._left.pop(data.group_name, None)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        changed = group.join(Member(channel, heartbeat.client_id, language, version, user))
        chars = 0 if heartbeat.without_sub else _chars(data)
        self._enter(self._consumer_groups_of, channel, data.group_name, chars)
        self._set_id(channel, heartbeat.client_id, user, now_ms)
        if not heartbeat.without_sub:
            changed |= group.subscribe(data.subscription_data_set)
            # A consumer that pulls chooses its queues itself, so it takes no messages from other members.
            shares_queues = data.consume_type != "CONSUME_ACTIVELY"
            group.set_wanted(
                heartbeat.client_id, wanted_of(data.group_name, data.subscription_data_set) if shares_queues else None
            )
        return changed

    def fingerprint_changed(self, group: str, fingerprint: int) -> bool:
        """Store the fingerprint of a member's heartbeat; returns whether the group had another fingerprint."""
        members = self._consumers[group]
        before, members.fingerprint = members.fingerprint, fingerprint
        return before not in (0, fingerprint)

    def join_producer_group(
        self,
        channel: Channel,
        heartbeat: HeartbeatData,
        group: str,
        language: str,
        version: int,
        now_ms: int,
        user: str = "",
    ) -> None:
        """Apply a heartbeat's part about one producer group."""
        member = Member(channel, heartbeat.client_id, language, version, user)
        self._producers.setdefault(group, {})[channel] = member
        self._enter(self._producer_groups_of, channel, group, 0)
        self._set_id(channel, heartbeat.client_id, user, now_ms)

    def _enter(self, groups_of: dict[Channel, Groups], channel: Channel, group: str, chars: int) -> None:
        """Add the connection to the group. With ``chars`` 0 the counted size of its subscriptions there stays."""
        groups = groups_of.setdefault(channel, {})
        known = groups.get(group)
        if known is None:
            self._members += 1
        elif known == chars or not chars:
            return
        groups[group] = chars
        self._count_chars(channel, chars - (known or 0))

    def _count_chars(self, channel: Channel, more: int) -> None:
        if more:
            self._chars += more
            self._chars_of[channel] = self._chars_of.get(channel, 0) + more

    def _set_id(self, channel: Channel, client_id: str, user: str, now_ms: int) -> None:
        """Record the heartbeat of a connection that is in a group, with its client id and user."""
        self._heard_ms[channel] = now_ms
        before = self._ids.get(channel)
        if before != client_id:
            if before is not None:
                self._let_go(channel, before, now_ms)
            self._ids[channel] = client_id
        self._holders.setdefault(client_id, {})[channel] = user
        self._drop_kept(client_id)

    # --- leaving

    def leave_consumer_group(self, channel: Channel, group: str) -> bool:
        """Remove the channel from the group; returns whether it was a member."""
        members = self._consumers.get(group)
        if members is None or not members.leave(channel):
            return False
        if not members.members:
            del self._consumers[group]
            self._remember(group, members.subscriptions)
        self._forget(self._consumer_groups_of, channel, group)
        return True

    def leave_producer_group(self, channel: Channel, group: str) -> bool:
        """Remove the channel from the group; returns whether it was a member."""
        members = self._producers.get(group)
        if members is None or members.pop(channel, None) is None:
            return False
        if not members:
            del self._producers[group]
        self._forget(self._producer_groups_of, channel, group)
        return True

    def close(self, channel: Channel) -> list[str]:
        """Remove a closed connection; returns the consumer groups that it was in."""
        for group in list(self._producer_groups_of.get(channel, ())):
            self.leave_producer_group(channel, group)
        left = list(self._consumer_groups_of.get(channel, ()))
        for group in left:
            self.leave_consumer_group(channel, group)
        return left

    def expired_channels(self, now_ms: int, timeout_ms: int) -> list[Channel]:
        """Connections of clients that sent no heartbeat for ``timeout_ms``."""
        return [channel for channel, at_ms in self._heard_ms.items() if now_ms - at_ms > timeout_ms]

    def _remember(self, group: str, subscriptions: dict[str, SubscriptionData]) -> None:
        chars = sum(len(each.topic) + len(each.sub_string) for each in subscriptions.values())
        if len(subscriptions) > MAX_LEFT_TOPICS or chars > MAX_LEFT_CHARS:
            return
        if len(self._left) >= MAX_LEFT:
            del self._left[next(iter(self._left))]
        self._left[group] = subscriptions

    def _let_go(self, channel: Channel, client_id: str, heard_ms: int) -> None:
        """Take the id from the connection, whose last heartbeat came at ``heard_ms``; reserve it for its user."""
        holders = self._holders[client_id]
        user = holders.pop(channel)
        if holders:
            return
        del self._holders[client_id]
        if not user:
            return
        while self._kept:
            oldest, (_, at_ms) = next(iter(self._kept.items()))
            if len(self._kept) < MAX_KEPT and heard_ms - at_ms < KEPT_MS:
                break
            self._drop_kept(oldest)
        if self._kept_of[user] < MAX_KEPT_OF_USER:
            self._kept[client_id] = user, heard_ms
            self._kept_of[user] += 1

    def _drop_kept(self, client_id: str) -> None:
        """End the reservation of the id."""
        if (kept := self._kept.pop(client_id, None)) is not None:
            self._kept_of[kept[0]] -= 1
            if not self._kept_of[kept[0]]:
                del self._kept_of[kept[0]]

    def _forget(self, groups_of: dict[Channel, Groups], channel: Channel, group: str) -> None:
        groups = groups_of[channel]
        self._count_chars(channel, -groups.pop(group))
        self._members -= 1
        if not groups:
            del groups_of[channel]
            if channel not in self._consumer_groups_of and channel not in self._producer_groups_of:
                self._let_go(channel, self._ids.pop(channel), self._heard_ms.pop(channel))
                self._chars_of.pop(channel, None)


def _chars(data: ConsumerData) -> int:
    chars = 0
    for each in data.subscription_data_set:
        chars += CHARS_OF_SUBSCRIPTION + len(each.topic) + (len(each.sub_string) or sum(map(len, each.tags_set)))
    return chars


def _recomputed(subscription: SubscriptionData) -> SubscriptionData:
    """A copy of the subscription with tags and codes computed here: some clients send wrong codes."""
    expression = subscription.sub_string or " || ".join(subscription.tags_set)
    try:
        return parse_subscription(
            subscription.topic, expression, subscription.expression_type, subscription.sub_version
        )
    except ValueError:  # "||" alone: no tag, so no message matches
        return SubscriptionData(subscription.topic, expression, subscription.expression_type, [], [])
