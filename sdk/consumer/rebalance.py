"""The queues of this member of a group: computed again whenever the members or the queues change.

Every member asks a broker for the members of the group, and computes its own share. So for a short time two members may
have a queue, or no member has it; ordered consumption takes locks at the broker as well. When a broker cannot be asked,
the queues of its topics stay as they are. The broker's answer to request 400 says whether the group consumes a topic by
pop, and which queues this member then pops. As in RocketMQ, orderly and broadcasting consumers, and retry topics, are
pulled in any case.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import trio

from skylark.mqcommon.errors import BrokerError, RemotingError, RouteNotFound, SkylarkError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.signal import Signal
from skylark.remoting.protocol.requests.groups import POP
from skylark.sdk import broker_api
from skylark.sdk.consumer.context import PushContext
from skylark.sdk.consumer.expression import Sql
from skylark.sdk.retry import is_transient
from skylark.sdk.routes import TopicRoute
from skylark.sdk.runtime import survived

logger = logging.getLogger(__name__)

INTERVAL_S = 20.0
# The pauses before the next rounds after an incomplete round: a topic or broker is missing, or a queue is locked. The
# pauses double, up to the longest.
AGAIN_S = 0.25
LONGEST_AGAIN_S = 4.0

Queues = Mapping[MessageQueue, str | Sql]
Change = Callable[[Queues, bool, Queues], Awaitable[bool]]

# RocketMQ's names of strategies, as brokers know them.
_STRATEGIES = {"circle": "AVG_BY_CIRCLE"}


class Rebalance:
    """Decides which queues this member owns, and calls ``change`` with them: queue → expression.

    The second argument of ``change`` says whether the group has other members, the third has the queues to pop from.
    ``change`` returns whether the member owns all these queues now. ``owned`` and ``popped`` are the present queues,
    ``subscriptions`` the topics.
    """

    def __init__(
        self,
        context: PushContext,
        subscriptions: Mapping[str, str | Sql],
        owned: Mapping[MessageQueue, object],
        popped: Mapping[MessageQueue, object],
        change: Change,
    ) -> None:
        self._client = context.client
        self._settings = context.settings
        self._subscriptions = subscriptions
        self._owned = owned
        self._popped = popped
        self._change = change
        self._problems = context.problems
        self._due = Signal()
        # Missing topics that were logged, so that each is logged once.
        self._missing: dict[str, None] = {}
        # Problems of brokers that do not know the group: forgotten when the brokers are in no route any more.
        self._strange: dict[str, None] = {}
        # Brokers that do not know request 400.
        self._assign_nothing: dict[str, None] = {}

    def soon(self) -> None:
        """Decide again now: members, topics or queues have changed."""
        self._due.set()

    async def run(self) -> None:
        """Decide every 20 s, after `soon`, and when the route of a topic changes."""
        again_s = AGAIN_S
        listeners = self._client.instance.on_new_route
        listeners.append(self._route_changed)
        try:
            while True:
                is_settled = False
                # Cleared before the round: a notice that arrives during the round causes another round.
                self._due.clear()
                with survived("rebalancing", self._problems.reporter("rebalancing")):
                    is_settled = await self._round()
                again_s = AGAIN_S if is_settled else min(2 * again_s, LONGEST_AGAIN_S)
                with trio.move_on_after(INTERVAL_S if is_settled else again_s):
                    await self._due.wait()
                    again_s = AGAIN_S
        finally:
            listeners.remove(self._route_changed)

    def _route_changed(self, topic: str) -> None:
        if topic in self._subscriptions:
            self.soon()

    async def _round(self) -> bool:
        wanted: dict[MessageQueue, str | Sql] = {}
        popped: dict[MessageQueue, str | Sql] = {}
        for topic in [topic for topic in self._missing if topic not in self._subscriptions]:
            del self._missing[topic]
            self._problems.report(_topic(topic), None)
        is_settled = True
        asked: dict[str, list[str] | None] = {}
        for topic, expression in list(self._subscriptions.items()):
            share = await self._share(topic, asked)
            # Keep the queues whose share is unknown. Giving them up would stop consumption whenever a broker restarts.
            if share is None:
                is_settled = False
                share = _of_topic(self._owned, topic), _of_topic(self._popped, topic)
            wanted.update(dict.fromkeys(share[0], expression))
            popped.update(dict.fromkeys(share[1], expression))
        for what in [what for what in self._strange if what not in map(self._at, asked)]:
            del self._strange[what]
            self._problems.report(what, None)
        is_shared = any(members is not None and len(members) > 1 for members in asked.values())
        return await self._change(wanted, is_shared, popped) and is_settled

    async def _share(
        self, topic: str, asked: dict[str, list[str] | None]
    ) -> tuple[Sequence[MessageQueue], Sequence[MessageQueue]] | None:
        """This member's queues of the topic, to pull and to pop; None when no broker can be asked now."""
        instance = self._client.instance
        try:
            route = await instance.route(topic)
        except (RouteNotFound, RemotingError, BrokerError) as error:
            if topic not in self._missing and topic != self._settings.retry_topic:
                self._missing[topic] = None
                self._problems.report(_topic(topic), error)
                near = ""
                if isinstance(error, RouteNotFound):
                    near = await instance.topic_names.like(topic, self._client.names, self._client.name_servers)
                logger.warning("waiting for topic %s: %s%s", topic, error, near)
            return None
        self._problems.report(_topic(topic), None)
        if self._missing.pop(topic, self) is None:
            logger.warning("topic %s is there", topic)
        if self._settings.broadcast:
            return route.readable, []
        members = await self._members(route, asked)
        # A member that the broker does not list has no share: the other members have divided the queues without it.
        if members is None or instance.client_id not in members:
            # The broker may have restarted: send it a heartbeat now, unless one was sent on this connection.
            instance.tell_brokers()
            return None
        popped = await self._to_pop(topic, route, asked)
        if popped is None:
            return None
        if popped:
            return [], popped
        return self._settings.allocate(route.readable, sorted(members), instance.client_id), []

    async def _to_pop(
        self, topic: str, route: TopicRoute, asked: Mapping[str, list[str] | None]
    ) -> list[MessageQueue] | None:
        """The queues to pop from; empty when the group pulls the topic, None when the broker does not answer now."""
        settings = self._settings
        if settings.orderly or topic == settings.retry_topic:
            return []
        # The broker that knew the members: a broker assigns queues only to members that it knows.
        addr = next(addr for addr in _addresses(route) if asked.get(addr) is not None)
        if addr in self._assign_nothing:
            return []
        strategy = settings.strategy if isinstance(settings.strategy, str) else ""
        try:
            assigned = await broker_api.assigned_queues(
                self._client.at(addr),
                settings.group,
                topic,
                self._client.instance.client_id,
                _STRATEGIES.get(strategy, "AVG"),
            )
        except BrokerError as error:
            logger.debug("%s assigns no queues: %s", addr, error)
            if error.is_unknown_request:
                self._assign_nothing[addr] = None
            # A broker that stays busy must not stop pulls.
            return None if is_transient(error) and _of_topic(self._popped, topic) else []
        except SkylarkError as error:
            logger.info("queues of topic %s: %s", topic, error)
            return None
        return [each.message_queue for each in assigned if each.mode == POP]

    async def _members(self, route: TopicRoute, asked: dict[str, list[str] | None]) -> list[str] | None:
        """The client ids of the group: from the first broker of the route that answers, masters first."""
        for addr in _addresses(route):
            if addr not in asked:
                asked[addr] = await self._ask(addr)
            if (members := asked[addr]) is not None:
                return members
        return None

    def _at(self, addr: str) -> str:
        """The name of the problem that the broker at ``addr`` does not know the group."""
        return f"group {self._settings.group} at {addr}"

    async def _ask(self, addr: str) -> list[str] | None:
        what = self._at(addr)
        try:
            members = await broker_api.consumer_ids(self._client.at(addr), self._settings.group)
        except BrokerError as error:
            # The first member gets this answer, too, while its heartbeat is in flight. A broker that has answered the
            # heartbeat and still knows no member does not let this group in.
            logger.debug("no members of group %s yet: %s", self._settings.group, error)
            if not self._client.instance.membership.strangers([addr]):
                self._strange[what] = None
                self._problems.report(what, error)
            return None
        except SkylarkError as error:
            logger.info("members of group %s: %s", self._settings.group, error)
            return None
        if self._strange.pop(what, self) is None:
            self._problems.report(what, None)
        return members


def _topic(topic: str) -> str:
    """The name of the problem that there is no route for ``topic``."""
    return f"topic {topic}"


def _of_topic(queues: Iterable[MessageQueue], topic: str) -> list[MessageQueue]:
    return [mq for mq in queues if mq.topic == topic]


def _addresses(route: TopicRoute) -> list[str]:
    """The addresses of its brokers, masters first."""
    found = [(number, addr) for addrs in route.brokers.values() for number, addr in addrs.items()]
    return [addr for _, addr in sorted(found)]
