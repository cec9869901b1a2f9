"""Routes, topics and groups, read from NameServers and brokers, and remembered for some seconds."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

import trio

from skylark.mqcommon.errors import BrokerError, RouteNotFound, SkylarkError
from skylark.mqproxy.masters import ask_masters
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.shared import Shared
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.routes import TopicRouteData
from skylark.sdk.admin.client import Admin
from skylark.sdk.retry import is_refusal

T = TypeVar("T")

# Callers who have an old answer wait this long for a new one; when it comes later, it is for later callers.
PATIENCE_S = 1.0

UNSPECIFIED, NORMAL = "UNSPECIFIED", "NORMAL"


class Remembered(Generic[T]):
    """Answers by key, each fetched once in ``fresh_s`` however many callers wait for it; at most ``most`` are kept.

    When an answer cannot be fetched again, the old answer is used for another ``fresh_s``: servers may be restarting. A
    refusal is raised.
    """

    def __init__(self, nursery: trio.Nursery, ask: Callable[[str], Awaitable[T]], fresh_s: float, most: int) -> None:
        self._nursery = nursery
        self._ask = ask
        self._fresh_s = fresh_s
        self._most = most
        # Oldest first: (when it was asked, the answer).
        self._known: dict[str, tuple[float, T]] = {}
        self._asking: dict[str, Shared[T]] = {}

    async def get(self, key: str) -> T:
        """The answer for ``key``; raises the error when there is none."""
        known = self._known.get(key)
        if known is not None and trio.current_time() - known[0] < self._fresh_s:
            return known[1]
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = Shared(self._nursery, partial(self._refresh, key))
        if known is None:
            return await asking.result()
        with trio.move_on_after(PATIENCE_S):
            return await asking.result()
        return known[1]

    def fresh(self, key: str, now_s: float) -> tuple[T] | None:
        """The answer for ``key``, alone in a tuple, if it need not be fetched at ``now_s`` (trio's time), else None."""
        known = self._known.get(key)
        return None if known is None or now_s - known[0] >= self._fresh_s else known[1:]

    async def _refresh(self, key: str) -> T:
        try:
            answer = await self._ask(key)
        except RouteNotFound as error:
            # A topic that NameServers do not know is gone, unless they do not know it because they have just started.
            if not error.is_passing or key not in self._known:
                self._known.pop(key, None)
                raise
            answer = self._known[key][1]
        except SkylarkError as error:
            # When a right was taken away, the old answer must not be used any more.
            if key not in self._known or is_refusal(error):
                self._known.pop(key, None)
                raise
            answer = self._known[key][1]
        finally:
            del self._asking[key]
        self._known.pop(key, None)
        self._known[key] = (trio.current_time(), answer)
        while len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return answer


class Metadata:
    """Routes, types of topics, and settings of groups. Questions to servers are tasks of ``nursery``."""

    def __init__(self, admin: Admin, options: ProxyOptions, nursery: trio.Nursery) -> None:
        self._admin = admin
        fresh_s, most = options.topic_config_cache_refresh_seconds, options.topic_config_cache_max_num
        self._routes = Remembered(nursery, admin.topic_route, fresh_s, most)
        self._types = Remembered(nursery, self._ask_type, fresh_s, most)
        self._groups = Remembered(nursery, self._ask_group, fresh_s, most)

    async def route(self, topic: str) -> TopicRouteData:
        """The route of a topic; RouteNotFound when it has none."""
        return await self._routes.get(topic)

    def known_route(self, topic: str, now_s: float) -> TopicRouteData | None:
        """As `route`; None when servers must be asked for it. ``now_s``: trio's time."""
        known = self._routes.fresh(topic, now_s)
        return None if known is None else known[0]

    async def message_type(self, topic: str) -> str:
        """The attribute message.type of a topic; UNSPECIFIED for a topic that no broker has."""
        return await self._types.get(topic)

    def known_message_type(self, topic: str, now_s: float) -> str | None:
        """As `message_type`; None when servers must be asked for it. ``now_s``: trio's time."""
        known = self._types.fresh(topic, now_s)
        return None if known is None else known[0]

    async def group(self, group: str) -> SubscriptionGroupConfig | None:
        """The settings of a group; None when no broker has it."""
        return await self._groups.get(group)

    async def is_ordered(self, group: str) -> bool:
        """Whether a group consumes in order, by its settings."""
        return _is_ordered(await self.group(group))

    def known_order(self, group: str, now_s: float) -> bool | None:
        """As `is_ordered`; None when servers must be asked for the settings. ``now_s``: trio's time."""
        known = self._groups.fresh(group, now_s)
        return None if known is None else _is_ordered(known[0])

    async def _ask_type(self, topic: str) -> str:
        async def ask(addr: str) -> str | None:
            try:
                config = await self._admin.topic_config(addr, topic)
            except BrokerError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                return None
            return config.attributes.get("message.type", NORMAL).upper()

        # One master is enough: mqadmin gives a topic the same attributes everywhere. A slave may lag behind a change.
        asked = await ask_masters((await self.route(topic)).broker_datas, ask)
        # The route says that brokers have the topic, so an answer "no such topic" of one master does not count for a
        # master that does not answer.
        if asked.found is None and asked.error is not None:
            raise asked.error
        return asked.found or UNSPECIFIED

    async def _ask_group(self, group: str) -> SubscriptionGroupConfig | None:
        async def ask(addr: str) -> SubscriptionGroupConfig | None:
            try:
                return await self._admin.group_config(addr, group)
            except BrokerError as error:
                if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    raise
                return None

        asked = await ask_masters((await self._admin.cluster_info()).broker_addr_table.values(), ask)
        # A group without settings may be unknown to all brokers, so the answer of one master is enough.
        if asked.error is not None and asked.found is None and not asked.is_missing:
            raise asked.error
        return asked.found


def _is_ordered(config: SubscriptionGroupConfig | None) -> bool:
    return config is not None and config.consume_message_orderly
