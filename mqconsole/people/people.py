"""All who are logged in, and how they log in and out.

A broker checks a name and a secret: it must serve a heartbeat without groups that is signed with them, and must refuse
the same heartbeat without a signature, as a cluster that checks nothing would let everybody in. Without a login there
is one person, who has the console's own credentials.
"""

import logging
from collections import Counter
from collections.abc import Callable
from secrets import token_urlsafe
from typing import Final

import trio

from skylark import Admin, Client
from skylark.mqcommon.addresses import limited_network
from skylark.mqcommon.errors import BrokerError, SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import username_fault
from skylark.mqconsole.people.person import Cluster, Person
from skylark.mqconsole.people.roles import Role, role_of
from skylark.mqconsole.people.tokens import Attempts, Tokens
from skylark.mqconsole.watching.snapshot import Snapshot
from skylark.remoting.protocol.requests.clients import HeartbeatData
from skylark.remoting.protocol.signature import Credentials
from skylark.sdk.admin.failures import explain
from skylark.sdk.broker_api import heartbeat
from skylark.sdk.client import ClientHandle
from skylark.sdk.runtime import local_ip

logger = logging.getLogger(__name__)

#: The most sessions, in all and of one person. The least recently used session of whoever has most makes room.
MOST_SESSIONS: Final = 200
MOST_SESSIONS_OF_ONE: Final = 20
IDLE_S: Final = 3_600.0
#: The period in which brokers are asked again whether a user may log in, and with which role.
RECHECK_S = 60.0
LOCAL_NAME: Final = "local"


class LoginFailed(UserError):
    """A refused login. The text is for the person, and does not say whether the name exists."""


@lazy_dataclass(slots=True, eq=False)
class Visit:
    """One login. ``ended`` closes the connections."""

    person: Person
    ends_s: float
    ended: trio.Event
    seen_s: float = 0.0


class People:
    """All sessions, while ``run`` runs. ``now_s`` is trio's clock."""

    def __init__(
        self,
        cluster: Cluster,
        own: Credentials | None,
        *,
        login: bool,
        session_s: float,
        secret: bytes,
        snapshot: Callable[[], Snapshot],
    ) -> None:
        self._cluster = cluster
        self._own = own
        self.has_login = login
        self._session_s = session_s
        self._snapshot = snapshot
        self._visits: dict[str, Visit] = {}
        self._nursery: trio.Nursery | None = None
        self._local: Person | None = None
        self.tokens = Tokens(secret)
        self.attempts = Attempts()

    async def run(self, client: Client, admin: Admin, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep the connections of all sessions. ``client`` and ``admin`` have the console's own credentials."""
        self._admin = admin
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if not self.has_login:
                self._local = Person(LOCAL_NAME, Role.ADMIN, self._cluster, client, self._own)
                async with self._local.admin:
                    task_status.started()
                    await trio.sleep_forever()
            task_status.started()
            await trio.sleep_forever()

    def find(self, session_id: str | None, *, is_use: bool = True) -> Person | None:
        """The person of a session; None when the session is unknown or over. ``is_use``: extends the session."""
        if not self.has_login:
            return self._local
        visit = self._visits.get(session_id or "")
        if visit is None:
            return None
        now = trio.current_time()
        if now >= visit.ends_s or now >= visit.seen_s + IDLE_S:
            self.leave(session_id or "")
            return None
        if is_use:
            visit.seen_s = now
        return visit.person

    async def enter(self, name: str, secret: str, client_host: str) -> str:
        """Log in, and return the id of a new session. Raises LoginFailed with the reason."""
        if not name or not secret:
            raise LoginFailed("give a name and a secret")
        # The console signs requests that contain this name, so the name must not be able to forge other fields.
        if username_fault(name) is not None:
            raise LoginFailed("the brokers do not accept this name with this secret")
        network = limited_network(client_host)
        if self.attempts.must_wait(network, name, trio.current_time()):
            raise LoginFailed("too many attempts: wait five minutes")
        credentials = Credentials(name, secret, plain_signature_addresses=self._cluster.plain_signature_addresses)
        # Count the attempt before asking the brokers: otherwise many attempts at the same moment would all pass.
        self.attempts.failed(network, name, trio.current_time())
        try:
            with trio.fail_after(self._cluster.timeout_ms / 1000 * 2):
                role = await self._checked(credentials)
        except LoginFailed:
            raise
        except (SkylarkError, trio.TooSlowError) as error:
            self.attempts.uncount(network, name)
            reason = explain(error) if isinstance(error, SkylarkError) else "no answer"
            logger.warning("a login cannot be checked: %s", reason)
            raise LoginFailed("the brokers cannot check the login now; the console's log says why") from None
        self.attempts.succeeded(network, name)
        # A new id for the session: an id that an attacker may have put into the browser gains nothing.
        self._make_room(name)
        session_id = token_urlsafe(32)
        assert self._nursery is not None
        await self._nursery.start(self._keep, session_id, credentials, role)
        return session_id

    def leave(self, session_id: str) -> None:
        """Log out, and close the connections."""
        if (visit := self._visits.pop(session_id, None)) is not None:
            visit.ended.set()

    async def _checked(self, credentials: Credentials) -> Role:
        """The role of whoever has these credentials."""
        addrs = [row.broker_addr for row in self._snapshot().masters() if row.error is None]
        if not addrs:
            raise UserError("no master answers the console")
        # First without a signature: a broker that serves this request has no access control, and accepts any secret.
        addr = addrs[0]
        if not await self._is_refused(addr, None):
            raise UserError(f"broker {addr} checks no signatures: switch access control on, or start without --login")
        if await self._is_refused(addr, credentials):
            raise LoginFailed("the brokers do not accept this name with this secret")
        return await role_of(self._admin, addr, credentials.access_key, local_ip())

    async def _is_refused(self, addr: str, credentials: Credentials | None) -> bool:
        handle = ClientHandle(
            self._cluster.namesrv,
            self._cluster.timeout_ms,
            needs_nameserver=False,
            credentials=credentials,
            tls=self._cluster.tls,
        )
        async with handle:
            try:
                await heartbeat(handle.at(addr), HeartbeatData(handle.instance.client_id))
            except BrokerError:
                return True
            return False

    async def _keep(
        self, session_id: str, credentials: Credentials, role: Role, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Keep the connections until the session ends, by logout, age, or because brokers no longer accept the user."""
        async with Client(
            self._cluster.namesrv, timeout_ms=self._cluster.timeout_ms, credentials=credentials, tls=self._cluster.tls
        ) as client:
            person = Person(credentials.access_key, role, self._cluster, client, credentials)
            async with person.admin:
                now = trio.current_time()
                visit = self._visits[session_id] = Visit(person, now + self._session_s, trio.Event(), now)
                task_status.started()
                with trio.move_on_after(self._session_s):
                    while not visit.ended.is_set():
                        with trio.move_on_after(RECHECK_S) as waited:
                            await visit.ended.wait()
                        if waited.cancelled_caught:
                            await self._check_again(session_id, person, credentials)

    async def _check_again(self, session_id: str, person: Person, credentials: Credentials) -> None:
        """End the session of a user who was deleted or disabled; adopt a changed role."""
        try:
            with trio.fail_after(self._cluster.timeout_ms / 1000 * 2):
                person.role = await self._checked(credentials)
        except LoginFailed:
            logger.warning("brokers do not accept %s any more: the session ends", person.name)
            self.leave(session_id)
        except (SkylarkError, trio.TooSlowError) as error:
            # No broker can answer. If the user is no longer valid, brokers refuse the person's requests themselves.
            logger.info("whether %s may still log in is not known: %s", person.name, error)

    def _make_room(self, name: str) -> None:
        """Make room for one more session of this person: end own sessions, or sessions of whoever has most."""
        while len(own := self._sessions_of(name)) >= MOST_SESSIONS_OF_ONE:
            self.leave(own[0])
        while len(self._visits) >= MOST_SESSIONS:
            sessions = Counter(visit.person.name for visit in self._visits.values())
            most = max(sessions.values())
            self.leave(self._sessions_of(*[name for name, count in sessions.items() if count == most])[0])

    def _sessions_of(self, *names: str) -> list[str]:
        """The sessions of these people, the least recently used first."""
        found = [one for one, visit in self._visits.items() if visit.person.name in names]
        return sorted(found, key=lambda one: self._visits[one].seen_s)
