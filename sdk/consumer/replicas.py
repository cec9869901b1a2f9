"""Which broker of a set to read from: the master, the slave that it suggests, or whoever is left.

A broker that does not answer is suspect: the others are asked first until it has answered a probe, so that a dead or
frozen master costs one timeout, not one a pull. Meanwhile its routes are asked for again: it may be elsewhere by now.
While nobody answers, the question is asked again until its timeout: a broker that restarts costs time, not an error.
A slave may lack what is new, so its refusal is no verdict: only the master says that there is no such topic or queue.
Neighbours: pull.py (reads), commits.py (only the master takes them), sdk/suspects.py (probes).
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from mqcommon.backoff import Backoff
from mqcommon.errors import BrokerError, RemotingError, RouteNotFound, SkylarkError, WrongBroker
from mqcommon.message.queue import MessageQueue
from mqcommon.names import MASTER_ID
from sdk.endpoint import Endpoint
from sdk.retry import passes
from sdk.routes import TopicRoute
from sdk.shared import ClientHandle
from sdk.suspects import PROBE_INTERVAL_S, Suspects
from sdk.waiting import until_answered

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Between probes of a broker that stays away.
MAX_PAUSE_S = 2.0


class Replica(NamedTuple):
    """One broker of a set; id 0 is the master."""

    broker_id: int
    addr: str


@dataclass(slots=True)
class _LeftAlone:
    """What is known of a suspect. ``topics`` are those in whose routes it was."""

    broker_name: str
    broker_id: int
    topics: dict[str, None] = field(default_factory=dict)


class Replicas:
    """The brokers that hold queues, as one consumer finds them."""

    def __init__(self, client: ClientHandle) -> None:
        self._client = client
        self._instance = client.instance
        self._probe_backoff = Backoff(PROBE_INTERVAL_S, MAX_PAUSE_S, self._instance.random)
        self._suggested: dict[MessageQueue, int] = {}
        self._left_alone: dict[str, _LeftAlone] = {}
        self._suspects = Suspects(
            client,
            in_routes=self._instance.routes.addrs,
            pause_s=self._pause_s,
            not_cleared=self._not_cleared,
            cleared=self._cleared,
        )

    # --- choosing

    async def reader(self, mq: MessageQueue, passed_over: Mapping[str, object]) -> Replica | None:
        """Whom to ask for messages, none of ``passed_over``: the suggested broker, else as `first`."""
        return await self.first(mq, passed_over, self._suggested.get(mq, MASTER_ID))

    async def first(
        self, mq: MessageQueue, passed_over: Mapping[str, object], preferred_id: int = MASTER_ID
    ) -> Replica | None:
        """Of those not ``passed_over`` the preferred one, else by id, suspects last; None when there is nobody else."""
        found = self._among(mq, await self._instance.route(mq.topic), passed_over, preferred_id)
        if found is None:
            try:
                found = self._among(mq, await self._instance.refresh(mq.topic), passed_over, preferred_id)
            except (RemotingError, RouteNotFound):
                # A NameServer that has just started, or whose brokers all stopped, knows no route.
                if not passed_over and self._instance.routes.get(mq.topic) is None:
                    raise
        return found

    def is_another(self, mq: MessageQueue, passed_over: Mapping[str, object]) -> bool:
        """Whether there is somebody else who is likely to answer."""
        route = self._instance.routes.get(mq.topic)
        found = None if route is None else self._among(mq, route, passed_over, MASTER_ID)
        return found is not None and found.addr not in self._suspects.addrs

    def _among(
        self, mq: MessageQueue, route: TopicRoute, passed_over: Mapping[str, object], preferred_id: int
    ) -> Replica | None:
        found = [
            Replica(broker_id, addr)
            for broker_id, addr in route.brokers.get(mq.broker_name, {}).items()
            if addr not in passed_over
        ]
        suspects = self._suspects.addrs
        return min(found, default=None, key=lambda one: (one.addr in suspects, one.broker_id != preferred_id, one))

    # --- what became of it

    def suggest(self, mq: MessageQueue, broker_id: int) -> None:
        """A broker said whom to ask next."""
        self._suggested[mq] = broker_id

    def failed(self, mq: MessageQueue, replica: Replica, error: SkylarkError) -> None:
        """Asking it ended in ``error``, which is raised when that is the answer; else another may know better."""
        if isinstance(error, WrongBroker):
            self._instance.is_elsewhere(mq.broker_name, replica.addr)
        elif isinstance(error, RemotingError):
            self.suspect(mq, replica, error)
        elif replica.broker_id == MASTER_ID and not passes(error):
            raise error

    def suspect(self, mq: MessageQueue, replica: Replica, error: RemotingError) -> None:
        """It did not answer: leave it alone until it answers a probe."""
        self._suggested.pop(mq, None)
        if self._suspects.add(replica.addr):
            logger.warning("broker %s id %d is left alone: %s", mq.broker_name, replica.broker_id, error)
            self._left_alone[replica.addr] = _LeftAlone(mq.broker_name, replica.broker_id)
        self._left_alone[replica.addr].topics[mq.topic] = None

    def _pause_s(self, probes: int) -> float:
        return self._probe_backoff.pause_s(probes) if probes else 0

    async def _not_cleared(self, addr: str, is_back: bool) -> None:
        """Ask again for the routes that it was in: it may be elsewhere by now."""
        for topic in list(self._left_alone[addr].topics):
            try:
                await self._instance.refresh(topic)
            except SkylarkError as error:
                logger.debug("the route of topic %s stays as it was: %s", topic, error)

    def _cleared(self, addr: str, is_back: bool) -> None:
        found = self._left_alone.pop(addr)
        if is_back:
            logger.warning("broker %s id %d answers again", found.broker_name, found.broker_id)

    # --- asking

    async def ask(self, mq: MessageQueue, call: Callable[[Endpoint], Awaitable[T]]) -> T:
        """What the master of the queue says; when it is away, a slave."""
        self._client.check_open()

        async def ask_each() -> T:
            failed: dict[str, SkylarkError] = {}
            while (replica := await self.first(mq, failed)) is not None:
                try:
                    return await call(self.at(mq, replica))
                except (RemotingError, BrokerError) as error:
                    failed[replica.addr] = error
                    self.failed(mq, replica, error)
            raise self.nobody(mq, failed)

        return await until_answered(ask_each, self._client.timeout_ms, self._instance.backoff)

    def at(self, mq: MessageQueue, replica: Replica) -> Endpoint:
        """Where to ask it."""
        return self._client.at(replica.addr, broker_name=mq.broker_name)

    def nobody(self, mq: MessageQueue, failed: Mapping[str, SkylarkError]) -> SkylarkError:
        """Why no broker of the queue's set answered for it; it passes."""
        for error in failed.values():
            if passes(error) and not isinstance(error, WrongBroker):
                return error
        route = self._instance.routes.get(mq.topic)
        skipped = () if route is None else route.skipped
        why = "".join(f"; {reason}" for reason in (*skipped, *failed.values()))
        return RouteNotFound(mq.topic, f"broker {mq.broker_name} has no master in it now{why}", is_passing=True)

    async def ask_master(self, mq: MessageQueue, call: Callable[[Endpoint], Awaitable[T]]) -> T:
        """What the master of the queue says; nobody else will do, and a suspect one is not asked."""
        addr = (await self._instance.route(mq.topic)).master(mq.broker_name)
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
