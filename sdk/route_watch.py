"""Learns of changes of a client's routes as soon as a Skylark NameServer does, with one held request.

The request names all topics of the client, and the version of the routes that the client knows. The answer names the
topics that changed since; the client fetches their routes, and the next request begins at the new version. So no change
is missed in between. With NameServers that do not know the request, as RocketMQ's, the client only polls every 30 s.
Neighbours: namesrv/watches.py answers; client.py polls.
"""

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.errors import BrokerError, RemotingError
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.requests.routes import WATCHES_ROUTES
from skylark.sdk import namesrv_api
from skylark.sdk.endpoint import ask_all
from skylark.sdk.nameservers import NameServers
from skylark.sdk.runtime import survived

logger = logging.getLogger(__name__)

# The first request is sent this long after the client's first route: many clients end before.
FIRST_S = 0.5
# How long to collect new topics before a request, as they come in groups.
TOGETHER_S = 0.05
# Brokers that start one after another cost a client ten requests a second at most, after a first few at once.
PAUSE_S = 0.1
BURST_S = 0.5
# The pause when there is no Skylark NameServer, or it does not answer.
RETRY_S = 5.0
# The pause when the NameServer has no room for the request.
CROWDED_S = 30.0
# The limit of topics that NameServers accept in one request.
MOST_TOPICS = 4_096


class RouteWatch:
    """Watches the topics that ``topics`` lists, and calls ``refresh`` for topics whose routes changed."""

    def __init__(
        self,
        servers: NameServers,
        remoting: RemotingClient,
        topics: Callable[[], Collection[str]],
        refresh: Callable[[str], Awaitable[Any]],
        timeout_ms: float,
    ) -> None:
        self._servers = servers
        self._remoting = remoting
        self._topics = topics
        self._refresh = refresh
        self._timeout_ms = timeout_ms
        self._due = Signal()
        self._scope: trio.CancelScope | None = None
        self._watched: Collection[str] = ()
        self._version = ""
        # The time at which the requests made so far would all have been due, at one per PAUSE_S.
        self._free_at = 0.0

    def add(self, topic: str) -> None:
        """Watch ``topic``, too, which the client uses now."""
        if topic not in self._watched:
            self._due.set()
            if self._scope is not None:
                self._scope.cancel()

    @enable_ki_protection
    async def run(self) -> None:
        """Watch until cancelled."""
        await self._due.wait()
        await trio.sleep(FIRST_S)
        while True:
            with survived("watching routes"):
                await self._round()

    async def _round(self) -> None:
        topics = list(self._topics())[:MOST_TOPICS]
        addr = self._servers.first
        if not topics or not self._remoting.greets_with(addr, WATCHES_ROUTES):
            with trio.move_on_after(RETRY_S):
                await self._due.wait()
            await trio.sleep(TOGETHER_S)
            return
        self._due.clear()
        self._watched = frozenset(topics)
        news: namesrv_api.RouteNews | None = None
        try:
            with trio.CancelScope() as self._scope:
                news = await namesrv_api.watch_routes(self._servers.at(addr, self._timeout_ms), topics, self._version)
        except (RemotingError, BrokerError) as error:
            # Route queries go on by themselves to the next NameServer when this one does not answer them.
            logger.info("routes are not watched at %s for %g s: %s", addr, RETRY_S, error)
            if isinstance(error, RemotingError):
                self._servers.skip(addr)
            await trio.sleep(RETRY_S if len(self._servers.addrs) == 1 else PAUSE_S)
            return
        finally:
            self._scope = None
            self._watched = ()
        if news is None:
            await trio.sleep(TOGETHER_S)  # there are more topics
            return
        # Changes before the first version are not known, so refresh all topics.
        changed = topics if news.topics is None or not self._version else news.topics
        self._version = news.version
        if changed:
            await ask_all(changed, self._refresh)
            now = trio.current_time()
            self._free_at = max(self._free_at, now) + PAUSE_S
            await trio.sleep(max(self._free_at - now - BURST_S, 0))
        if not news.is_held:
            await trio.sleep(CROWDED_S)
