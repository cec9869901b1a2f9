"""Learns of changes of a client's routes as soon as a NameServer of ours does, with one held request.

The request names all topics of the client, and as of which version of the routes it knows them. Its answer names those
that changed since; they are asked for, and the next request begins at the new version. So nothing is missed in between.
Where NameServers do not know the request, which RocketMQ's do not, the client's poll every 30 s is all there is.
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

# The first request of a client comes this long after its first route: many clients live shorter.
FIRST_S = 0.5
# New topics come in groups.
TOGETHER_S = 0.05
# Brokers that start one after another cost a client ten requests a second at most, after a first few at once.
PAUSE_S = 0.1
BURST_S = 0.5
# When there is no NameServer of ours, or it does not answer.
RETRY_S = 5.0
# The NameServer has no room for the request.
CROWDED_S = 30.0
# NameServers take no more.
MOST_TOPICS = 4_096


class RouteWatch:
    """Watches the topics that ``topics`` lists, and calls ``refresh`` for those that changed."""

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
        # When as many requests will have been due, at one each PAUSE_S, as there were.
        self._free_at = 0.0

    def note(self, topic: str) -> None:
        """The client uses ``topic``: watch it, too."""
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
        # What changed before the first version is not known.
        changed = topics if news.topics is None or not self._version else news.topics
        self._version = news.version
        if changed:
            await ask_all(changed, self._refresh)
            now = trio.current_time()
            self._free_at = max(self._free_at, now) + PAUSE_S
            await trio.sleep(max(self._free_at - now - BURST_S, 0))
        if not news.is_held:
            await trio.sleep(CROWDED_S)
