"""Which broker of a set to read from: the master, the slave that the master suggests, or any other that answers.

A broker that does not answer is a suspect: other brokers are asked first until the suspect has answered a probe, so
that a dead or frozen master costs one timeout, not one per pull. Meanwhile the routes with the suspect are refreshed,
since its address may have changed. While no broker answers, all brokers are asked again until the timeout, so that a
restart causes a delay, not an error. A slave may lack new topics and queues, so its refusal is not final: only the
master's "no such topic or queue" counts. Neighbours: pull.py (reads), offsets.py (commits, to the master only),
sdk/suspects.py (probes).
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import NamedTuple, TypeVar

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import BrokerError, RemotingError, RouteNotFound, SkylarkError, WrongBroker
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import MASTER_ID
from skylark.sdk.client import ClientHandle
from skylark.sdk.endpoint import Endpoint
from skylark.sdk.retry import is_transient, until_answered
from skylark.sdk.routes import TopicRoute
from skylark.sdk.suspects import PROBE_INTERVAL_S, Suspects

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The longest pause between probes of a broker.
MAX_PAUSE_S = 2.0


class Replica(NamedTuple):
    """One broker of a set; the master has id 0."""

    broker_id: int
    addr: str


@lazy_dataclass(slots=True)
class _Suspect:
    """A broker that does not answer. ``topics``: topics whose routes contained the broker."""

    broker_name: str
    broker_id: int
    topics: dict[str, None] = field(default_factory=dict)


class Replicas:
    """The brokers from which one consumer reads."""

    def __init__(self, client: ClientHandle) -> None:
        self._client = client
        self._instance = client.instance
        self._probe_backoff = Backoff(PROBE_INTERVAL_S, MAX_PAUSE_S, self._instance.random)
        self._suggested: dict[MessageQueue, int] = {}
        self._suspects_by_addr: dict[str, _Suspect] = {}
        self._suspects = Suspects(
            client,
            in_routes=self._instance.routes.addrs,
            pause_s=self._pause_s,
            not_cleared=self._not_cleared,
            cleared=self._cleared,
        )

    # --- choosing

    async def reader(self, mq: MessageQueue, asked: Mapping[str, object]) -> Replica | None:
        """The replica to pull from that was not ``asked`` yet: the suggested replica, else the result of `first`."""
        return await self.first(mq, asked, self._suggested.get(mq, MASTER_ID))

    async def first(
        self, mq: MessageQueue, asked: Mapping[str, object], preferred_id: int = MASTER_ID
    ) -> Replica | None:
        """The next replica not ``asked`` yet: the preferred replica, then by id; suspects last. None if all were."""
        found = self._choose(mq, await self._instance.route(mq.topic), asked, preferred_id)
        if found is None:
            try:
                found = self._choose(mq, await self._instance.refresh(mq.topic), asked, preferred_id)
            except (RemotingError, RouteNotFound):
                # A NameServer that has just started, or whose brokers have all stopped, knows no route.
                if not asked and self._instance.routes.get(mq.topic) is None:
                    raise
        return found

    def has_other(self, mq: MessageQueue, asked: Mapping[str, object]) -> bool:
        """Whether there is another replica that was not ``asked`` yet and is not a suspect."""
        route = self._instance.routes.get(mq.topic)
        found = None if route is None else self._choose(mq, route, asked, MASTER_ID)
        return found is not None and found.addr not in self._suspects.addrs

    def _choose(
        self, mq: MessageQueue, route: TopicRoute, asked: Mapping[str, object], preferred_id: int
    ) -> Replica | None:
        found = [Replica(broker_id, addr) for broker_id, addr in route.addrs_of(mq).items() if addr not in asked]
        suspects = self._suspects.addrs
        # Suspects come last even if they were suggested: each of them may cost a timeout.
        return min(found, default=None, key=lambda one: (one.addr in suspects, one.broker_id != preferred_id, one))

    # --- results

    def suggest(self, mq: MessageQueue, broker_id: int) -> None:
        """Ask broker ``broker_id`` of the set next, as a broker's answer has suggested."""
        self._suggested[mq] = broker_id

    def failed(self, mq: MessageQueue, replica: Replica, error: SkylarkError) -> None:
        """Avoid ``replica``, if it did not answer a request. Raises ``error`` if no other replica would answer it."""
        if isinstance(error, WrongBroker):
            self._instance.drop_address(mq.broker_name, replica.addr)
        elif isinstance(error, RemotingError):
            self.suspect(mq, replica, error)
        # A slave may lack a new topic or queue; only the master's refusal is final.
        elif replica.broker_id == MASTER_ID and not is_transient(error):
            raise error

    def suspect(self, mq: MessageQueue, replica: Replica, error: RemotingError) -> None:
        """Avoid ``replica``, which did not answer, until it answers a probe."""
        self._suggested.pop(mq, None)
        if self._suspects.add(replica.addr):
            logger.warning("broker %s id %d is avoided until it answers: %s", mq.broker_name, replica.broker_id, error)
            self._suspects_by_addr[replica.addr] = _Suspect(mq.broker_name, replica.broker_id)
        self._suspects_by_addr[replica.addr].topics[mq.topic] = None

    def _pause_s(self, probes: int) -> float:
        return self._probe_backoff.pause_s(probes) if probes else 0

    async def _not_cleared(self, addr: str, is_back: bool) -> None:
        """Refresh the routes that the suspect was in: its address may have changed."""
        for topic in list(self._suspects_by_addr[addr].topics):
            try:
                await self._instance.refresh(topic)
            except SkylarkError as error:
                logger.debug("the route of topic %s cannot be refreshed: %s", topic, error)

    def _cleared(self, addr: str, is_back: bool) -> None:
        found = self._suspects_by_addr.pop(addr)
        if is_back:
            logger.warning("broker %s id %d answers again", found.broker_name, found.broker_id)

    # --- asking

    async def ask(self, mq: MessageQueue, call: Callable[[Endpoint], Awaitable[T]]) -> T:
        """The answer of the queue's master, or of a slave when the master does not answer."""
        self._client.check_open()

        async def ask_each() -> T:
            failed: dict[str, SkylarkError] = {}
            while (replica := await self.first(mq, failed)) is not None:
                try:
                    return await call(self.at(mq, replica))
                except (RemotingError, BrokerError) as error:
                    failed[replica.addr] = error
                    self.failed(mq, replica, error)
            raise self.unavailable(mq, failed)

        return await until_answered(ask_each, self._client.timeout_ms, self._instance.backoff)

    def at(self, mq: MessageQueue, replica: Replica) -> Endpoint:
        """The endpoint of ``replica``."""
        return self._client.at(replica.addr, broker_name=mq.broker_name)

    def unavailable(self, mq: MessageQueue, failed: Mapping[str, SkylarkError]) -> SkylarkError:
        """The error when no broker of the queue's set has answered; it is always transient."""
        # A transient failure says more than "there is no master", and makes callers try again.
        for error in failed.values():
            if is_transient(error) and not isinstance(error, WrongBroker):
                return error
        route = self._instance.routes.get(mq.topic)
        skipped = () if route is None else route.skipped
        why = "".join(f"; {reason}" for reason in (*skipped, *failed.values()))
        return RouteNotFound(mq.topic, f"broker {mq.broker_name} has no master in it now{why}", is_passing=True)

    async def ask_master(self, mq: MessageQueue, call: Callable[[Endpoint], Awaitable[T]]) -> T:
        """The answer of the queue's master. Raises RouteNotFound at once when the master is a suspect."""
        addr = (await self._instance.route(mq.topic)).master_of(mq)
        if addr is not None and addr in self._suspects.addrs:
            reason = f"the master of broker {mq.broker_name}, {addr}, does not answer now"
            raise RouteNotFound(mq.topic, reason, is_passing=True)
        try:
            return await self._client.ask_master(mq, call)
        except WrongBroker:
            raise
        except RemotingError as error:
            if addr is not None:
                self.suspect(mq, Replica(MASTER_ID, addr), error)
            raise
