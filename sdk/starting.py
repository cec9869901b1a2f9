"""The checks of producers and consumers before their ``async with`` block begins: whether they can work at all.

A NameServer must answer within ``start_timeout_ms``, and a broker must accept the first heartbeat, which reveals wrong
credentials and missing permissions. Brokers that cannot be reached, and topics that do not exist yet, do not keep a
client from starting: the client waits for them afterwards. With ``start_timeout_ms=None`` there are no checks.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.arguments import check_milliseconds
from skylark.mqcommon.errors import (
    BrokerError,
    NoNameServer,
    NotNameServer,
    NotRocketMQ,
    RemotingError,
    RouteNotFound,
    SkylarkError,
)
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.protocol.requests.routes import ClusterInfo
from skylark.sdk import namesrv_api
from skylark.sdk.client import ClientHandle, ClientInstance
from skylark.sdk.retry import Outcome, is_transient, outcome_of

logger = logging.getLogger(__name__)

START_TIMEOUT_MS = 5_000
# A producer knows no topic yet: it asks one of the cluster's masters, and other masters when that one cannot be
# reached.
MAX_MASTERS = 3
MASTER_TIMEOUT_MS = 1_000
# How long to wait for the answer to the client's own heartbeat.
OWN_HEARTBEAT_S = 0.5

T = TypeVar("T")


def check_start_timeout(value: float | None) -> None:
    """TypeError or ValueError unless ``value`` is a time, or None."""
    if value is not None:
        check_milliseconds("start_timeout_ms", value)


class Start:
    """The start of one producer or consumer, on an open client whose groups it has joined.

    Methods raise NoNameServer, NotRocketMQ or NotNameServer for the address of another server, and BrokerError for
    refusals that a retry would repeat, with a note that says what to do.
    """

    def __init__(self, client: ClientHandle, timeout_ms: float) -> None:
        self._instance: ClientInstance = client.instance
        self._timeout_ms = timeout_ms
        self._deadline = trio.current_time() + timeout_ms / 1000

    async def with_topics(self, topics: Sequence[str]) -> str | None:
        """Read the routes of ``topics`` (servers' names), and wait until one of their brokers accepts the heartbeat.

        Returns the broker's address; None when no broker of the topics can be reached, or no topic exists yet: then the
        heartbeat goes to any master.
        """
        instance, addrs = self._instance, dict[str, None]()
        for topic in topics:
            try:
                route = await self._answer(lambda topic=topic: instance.route(topic))  # type: ignore[misc]
            except RouteNotFound:
                continue
            addrs.update(dict.fromkeys(addr for by_id in route.brokers.values() for addr in by_id.values()))
        if not addrs:
            await self.without_topics()
            return None
        # The routes are cached now, so the client itself sends its first heartbeats to these brokers; wait here for
        # their answers.
        instance.tell_brokers()
        taken: str | None = None
        refusal: BrokerError | None = None
        with trio.move_on_at(self._deadline):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_soon, list(addrs))
                try:
                    taken = await instance.membership.until_taken(list(addrs))
                except BrokerError as error:
                    refusal = error
                nursery.cancel_scope.cancel()
        # Raised here and not in the nursery, which would wrap it in a group.
        if refusal is not None:
            raise_if_final(refusal)
        return taken

    @enable_ki_protection
    async def _send_soon(self, addrs: list[str]) -> None:
        """Send heartbeats to ``addrs`` now: the client's own heartbeats may be waiting for a broker without an
        answer."""
        await trio.sleep(OWN_HEARTBEAT_S)
        await self._instance.introduce(addrs)

    async def without_topics(self) -> None:
        """Wait for a NameServer, and send the heartbeat to a master of the cluster."""
        instance = self._instance
        try:
            table = (await self._answer(self._clusters)).broker_addr_table
        except NotNameServer:
            raise
        except BrokerError as error:
            # Applications may not be allowed to list brokers; only their credentials must be valid.
            if outcome_of(error) is Outcome.REFUSED:
                raise_if_final(error)
            return
        masters = [data.broker_addrs[MASTER_ID] for data in table.values() if MASTER_ID in data.broker_addrs]
        for addr in instance.random.sample(masters, min(len(masters), MAX_MASTERS)):
            try:
                await instance.membership.introduce_to(instance.at(addr, MASTER_TIMEOUT_MS))
            except BrokerError as error:
                raise_if_final(error)
            except RemotingError as error:
                logger.info("a master does not answer at the start, trying another: %s", error)
                continue
            return

    async def _clusters(self) -> ClusterInfo:
        return await self._instance.name_servers.ask(namesrv_api.cluster_info, self._instance.timeout_ms)

    async def _answer(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of a NameServer. NoNameServer when none comes before the deadline."""
        failures, failure = 0, SkylarkError(f"no answer within {self._timeout_ms:.0f} ms")
        with trio.move_on_at(self._deadline):
            while True:
                try:
                    return await ask()
                except NotRocketMQ:
                    raise
                except SkylarkError as error:
                    if not isinstance(error, RemotingError) and not (
                        isinstance(error, BrokerError) and is_transient(error)
                    ):
                        raise
                    failure = error
                failures += 1
                if failures == 1:
                    logger.warning("waiting for a NameServer, %.1f s at most: %s", self._timeout_ms / 1000, failure)
                await trio.sleep(self._instance.backoff.pause_s(failures))
        if not isinstance(failure, NoNameServer):
            failure, cause = NoNameServer(self._instance.name_servers.text, str(failure)), failure
            failure.__cause__ = cause
        failure.add_note(f"waited for start_timeout_ms={self._timeout_ms:.0f}; with None the start does not wait")
        raise failure


def raise_if_final(error: BrokerError) -> None:
    """Raise ``error`` if the server would refuse a retry, too. Do nothing if a retry may succeed: the start goes on."""
    if outcome_of(error) in (Outcome.REFUSED, Outcome.REFUSED_HERE):
        error.add_note("refused at the start; with start_timeout_ms=None the client starts and goes on trying")
        raise error
