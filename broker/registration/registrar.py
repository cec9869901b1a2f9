"""Keeps the broker registered with every NameServer, with a task for each, so that a hung one does not delay others.

Topics are sent when some changed, when the connection is new (a NameServer forgets a broker whose connection
closed), and when the periodic question 322 says so. A NameServer that is down is tried about every second; a line is
logged when it goes down and another when it is back. A broker without NameServers serves all the same.
A slave registers in full each time, since only a full registration is answered with its master's address; while it
knows no master it registers more often. With acting masters, a master registers after it has fetched the offsets that
slaves committed for it, and all brokers send light heartbeats, too. Limit: ten registrations a second with each
NameServer, fewer when a registration takes long.
Neighbours: outer_api.py (the requests), meta/topics.py (changes), replication/known_master.py (the master's address).
"""

import logging
from collections.abc import Awaitable, Callable
from random import Random

import trio

from skylark.broker.identity import Identity
from skylark.broker.meta.topics import Topics
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.registration.heartbeats import Heartbeats
from skylark.broker.registration.namesrv_list import NameServerList
from skylark.broker.registration.outer_api import OuterApi
from skylark.broker.registration.registration import Registration
from skylark.broker.replication.known_master import KnownMaster
from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError, RequestTimeout
from skylark.mqcommon.names import MASTER_ID
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.client import OpenClient, RemotingClient, open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.routes import GUARDS_REGISTRATIONS

logger = logging.getLogger(__name__)

# Pauses between tries while a NameServer is down: they grow from the first to the second, with jitter.
FIRST_RETRY_S = 0.1
RETRY_S = 1.0
PAUSE_S = 0.1
# The pause after a registration is this many times its duration, up to `LONG_PAUSE_S`; after a registration that took
# longer, the pause is its duration. If the machine stood still for seconds, a new topic must not stay unknown for long.
PAUSE_FACTOR = 5
LONG_PAUSE_S = 1.0
# How often a slave asks while a NameServer does not know its master, unless answers take long.
MASTERLESS_S = 1.0
MASTERLESS_FACTOR = 20
# How often a broker logs that another broker has the same name and id.
CONTEST_LOG_S = 60.0
# The longest wait for the answer of a NameServer that was removed from the list.
UNREGISTER_S = 3.0
# A NameServer that refuses this broker is asked once a period; one in this many refusals is logged.
REFUSALS_A_LINE = 20

_Failures = (RemotingError, BrokerError, ProtocolError)


class _NameServer:
    """The state of one NameServer."""

    def __init__(self, addr: str) -> None:
        self.addr = addr
        self.wake = Signal()
        #: The registration with this NameServer; None before the first connection.
        self.registration: Registration | None = None
        #: Whether the NameServer answers; None until the first attempt.
        self.up: bool | None = None
        self.failures = 0
        #: How often in a row the NameServer has refused to register this broker.
        self.refusals = 0
        #: The scope of this NameServer's tasks; cancelled when the NameServer is removed from the list.
        self.scope = trio.CancelScope()
        self.is_gone = False

    @property
    def is_registered(self) -> bool:
        """Whether this broker is registered with this NameServer, as far as the broker knows."""
        return self.registration is not None and self.registration.version is not None

    def forget(self) -> None:
        """Send all topics next time: the NameServer has dropped this broker, or may have."""
        if self.registration is not None:
            self.registration.forget()

    def register_anew(self) -> None:
        """Send all topics again, as soon as the limits of this module allow."""
        self.forget()
        self.wake.set()


class Registrar(Part):
    """Keeps this broker registered with all NameServers.

    Call `register_soon` when topics change, `role_changed` when the role changes.
    """

    def __init__(
        self,
        identity: Identity,
        topics: Topics,
        options: BrokerOptions,
        master: KnownMaster,
        heartbeats: Heartbeats | None = None,
        prepare: Callable[[RemotingClient], Awaitable[None]] | None = None,
        open_client: OpenClient = open_client,
        namesrvs: NameServerList | None = None,
    ) -> None:
        """``master`` gets the master's address that NameServers report, while this broker is a slave.

        With acting masters, ``heartbeats`` go to the NameServers with which this broker is registered, and a master
        registers after ``prepare``.
        """
        self._identity = identity
        self._topics = topics
        self._options = options
        self._master = master
        self._heartbeats = heartbeats
        self._prepare = prepare
        self._open_client = open_client
        self._backoff = Backoff(FIRST_RETRY_S, RETRY_S, Random())
        self._namesrvs = namesrvs or NameServerList(options)
        self._states: dict[str, _NameServer] = {}
        self._nursery: trio.Nursery | None = None
        self._client: RemotingClient | None = None
        # Woken by each registration.
        self._registered = trio.lowlevel.ParkingLot()
        self._loops = trio.CancelScope()
        self._stopping = False
        self._running = False
        self._finished = trio.Event()
        self._unregister_timeout_ms = 0.0
        self._rival = ""
        self._contest_logged_at = 0.0
        self.list_changed()

    def register_soon(self) -> None:
        """Tell all NameServers that topics changed, as soon as the limits of this module allow."""
        for state in self._states.values():
            state.wake.set()

    def role_changed(self) -> None:
        """Tell all NameServers that this broker has another id now."""
        for state in self._states.values():
            state.register_anew()

    def list_changed(self) -> None:
        """Register with NameServers that are new in the list, and unregister from removed ones."""
        before, self._states = (
            self._states,
            {addr: self._states.get(addr) or _NameServer(addr) for addr in self._namesrvs.addrs},
        )
        for addr, state in before.items():
            if addr not in self._states:
                state.is_gone = True
                state.scope.cancel()
        if self._nursery is not None and self._client is not None and not self._stopping:
            for addr, state in self._states.items():
                if addr not in before:
                    self._nursery.start_soon(self._keep, self._client, state)

    @property
    def _is_slave(self) -> bool:
        return self._identity.broker_id != MASTER_ID

    @property
    def registered_addrs(self) -> list[str]:
        """NameServers that answer and know the present topics."""
        # To have registered once is not enough: a NameServer that lacks a new topic sends clients away.
        version = self._topics.data_version
        return [s.addr for s in self._states.values() if s.up and s.registration and s.registration.version == version]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Register and stay registered. `stop` ends this and unregisters; a cancellation ends it and does not."""
        self._running = True
        if not self._options.has_namesrvs:
            logger.warning("no NameServer is set: clients find this broker only by its address %s", self._identity.addr)
        try:
            async with self._open_client(on_lost=self._connection_lost) as client:
                try:
                    task_status.started()
                    # `stop` cancels only the loops in this scope: the connections must outlive the loops, as the broker
                    # unregisters over them.
                    with self._loops:
                        # Before the first registration, so that no client finds this master with old offsets.
                        if self._prepare is not None:
                            await self._prepare(client)
                        async with trio.open_nursery() as self._nursery:
                            self._client = client
                            for state in self._states.values():
                                self._nursery.start_soon(self._keep, client, state)
                            await trio.sleep_forever()
                    await self._unregister(client)
                finally:
                    self._stopping = True  # connections that end from here on are not logged
        finally:
            self._finished.set()

    async def stop(self, timeout_ms: float = 3_000) -> None:
        """Unregister from all NameServers that answer within ``timeout_ms``, and end `run`."""
        self._stopping = True
        self._unregister_timeout_ms = timeout_ms
        self._loops.cancel()
        if self._running:
            await self._finished.wait()

    async def _keep(self, client: RemotingClient, state: _NameServer) -> None:
        """Stay registered with one NameServer, until the NameServer is removed from the list."""
        with state.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_registered, client, state)
                if self._heartbeats is not None:
                    nursery.start_soon(self._keep_alive, client, state, self._heartbeats)
        if not state.is_gone:
            return
        self._master.reported(state.addr, None)
        # If the address is in the list again, another task already sends heartbeats to it.
        if self._heartbeats is not None and state.addr not in self._states:
            self._heartbeats.forget(state.addr)
        with trio.move_on_after(UNREGISTER_S):
            if self._namesrvs.has_behind_name(state.addr):
                # The same server: unregistering there, or closing the connection first, would take this broker out of
                # the routes until it is registered over another connection.
                while not all(each.up for each in self._states.values()):
                    await self._registered.park()
            elif state.up:
                await self._unregister_from(client, state, UNREGISTER_S * 1000)
        client.close_connection(state.addr, "it is not in the list of NameServers any more")
        # The same server may be in the list under another address, and have forgotten this broker now.
        for other in self._states.values():
            other.register_anew()

    async def _keep_registered(self, client: RemotingClient, state: _NameServer) -> None:
        namesrv = OuterApi(client, state.addr, self._identity, self._options)
        registration = state.registration = Registration(namesrv, self._topics, self._options)
        while True:
            # Cleared before the topics are read: any later change wakes the loop again, so no change is missed.
            state.wake.clear()
            started = trio.current_time()
            try:
                await self._register(namesrv, registration)
            except Exception as error:
                self._failed(state, error)
                if isinstance(error, RequestTimeout):  # the connection may be dead without an error
                    client.close_connection(state.addr, "no answer in time")
                # Changes do not end this pause: a NameServer that accepts connections and drops them must cost little.
                refused_s = self._options.register_period_ms / 1000
                await trio.sleep(refused_s if _is_refused(error) else self._backoff.pause_s(state.failures))
                continue
            self._succeeded(client, state)
            took = trio.current_time() - started
            period_s = self._period_s(took)
            # Never longer than the period: a NameServer forgets a broker that is silent for long.
            await trio.sleep(min(pause_s(took), max(PAUSE_S, period_s)))
            with trio.move_on_after(period_s):
                await state.wake.wait()

    async def _keep_alive(self, client: RemotingClient, state: _NameServer, heartbeats: Heartbeats) -> None:
        namesrv = OuterApi(client, state.addr, self._identity, self._options)
        await heartbeats.keep(namesrv, lambda: state.is_registered, state.register_anew)

    def _period_s(self, took_s: float) -> float:
        period_s = self._options.register_period_ms / 1000
        if not self._is_slave or self._master.registered:
            return period_s
        return min(max(MASTERLESS_S, MASTERLESS_FACTOR * took_s), period_s)

    async def _register(self, namesrv: OuterApi, registration: Registration) -> None:
        # A slave is never "known": only a registration in full is answered with its master's address.
        version = self._topics.data_version
        known = registration.version == version and not self._options.force_register and not self._is_slave
        if known and not await registration.is_outdated():
            return
        if known:
            registration.forget()  # the NameServer has lost the registration, or does not know of another broker
        address = await registration.send()
        if namesrv.contested_by:
            self._log_contest(namesrv.addr, namesrv.contested_by)
        if self._heartbeats is not None:
            self._heartbeats.ask_soon()
        if self._is_slave:
            self._master.reported(namesrv.addr, address)

    def _log_contest(self, addr: str, rival: str) -> None:
        now = trio.current_time()
        if rival == self._rival and now < self._contest_logged_at + CONTEST_LOG_S:
            return
        self._rival, self._contest_logged_at = rival, now
        who = self._identity
        logger.error(
            "NameServer %s has another broker as %s with id %d, at %s: while both run, that one and this one, at %s,"
            " displace each other; stop one of them, or give it another brokerName or brokerId",
            addr,
            who.broker_name,
            who.broker_id,
            rival,
            who.addr,
        )

    def _connection_lost(self, addr: str) -> None:
        state = self._states.get(addr)
        if state is None or self._stopping:
            return
        state.forget()
        if state.up:
            state.up = False
            logger.warning("connection to NameServer %s lost, trying to reconnect", addr)
        state.wake.set()

    def _failed(self, state: _NameServer, error: Exception) -> None:
        state.forget()
        if self._is_slave:
            self._master.reported(state.addr, None)
        state.failures += 1
        if _is_refused(error):
            self._log_refused(state, error)
        elif state.up is not False and not isinstance(error, _Failures):
            logger.error("registration at NameServer %s failed, still trying", state.addr, exc_info=error)
        elif state.up is not False:
            logger.warning("not registered at NameServer %s, still trying: %s", state.addr, error)
        state.up = False

    def _log_refused(self, state: _NameServer, error: Exception) -> None:
        if state.refusals % REFUSALS_A_LINE == 0:
            who = self._options.inner_credentials
            logger.error(
                "not registered at NameServer %s, trying every %d s: %s; set innerClientAuthenticationCredentials"
                " (now of %s) to a user of registrationUsers of that NameServer, or to an administrator of its aclFile",
                state.addr,
                self._options.register_period_ms // 1000,
                error,
                who.access_key if who else "nobody",
            )
        state.refusals += 1

    def _succeeded(self, client: RemotingClient, state: _NameServer) -> None:
        if not state.up:
            wire = "CBOR" if client.speaks_cbor(state.addr) else "JSON"
            logger.info("registered at NameServer %s as %s, in %s", state.addr, self._identity.addr, wire)
            # Where anybody registers, clients meet fake brokers, however well this one is guarded.
            if self._options.has_access_control and not client.greets_with(state.addr, GUARDS_REGISTRATIONS):
                logger.warning(
                    "NameServer %s takes registrations from anybody, while this broker has access control: set"
                    " registrationUsers there",
                    state.addr,
                )
        state.up = True
        state.failures = state.refusals = 0
        self._registered.unpark_all()

    async def _unregister(self, client: RemotingClient) -> None:
        """Unregister from all at once; a NameServer that does not answer will notice the closed connection."""
        # Skip NameServers that do not answer: they would hold up the stop, and will notice the closed connection.
        with trio.move_on_after(self._unregister_timeout_ms / 1000):
            async with trio.open_nursery() as nursery:
                for state in self._states.values():
                    if state.up:
                        nursery.start_soon(self._unregister_from, client, state, self._unregister_timeout_ms)

    async def _unregister_from(self, client: RemotingClient, state: _NameServer, timeout_ms: float) -> None:
        try:
            await OuterApi(client, state.addr, self._identity, self._options, timeout_ms).unregister()
        except _Failures as error:
            logger.warning("not unregistered from NameServer %s: %s", state.addr, error)
        else:
            logger.info("unregistered from NameServer %s", state.addr)


def pause_s(took_s: float) -> float:
    """How long to wait after a registration that took ``took_s``."""
    return max(PAUSE_S, min(PAUSE_FACTOR * took_s, LONG_PAUSE_S), took_s)


def _is_refused(error: Exception) -> bool:
    """Whether the NameServer has access control, and this broker does not sign as one of its administrators."""
    return isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION
