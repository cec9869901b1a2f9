"""The users of calls, and the session of each user, with which calls are carried out.

A session has clients of the SDK that sign as its user, so brokers see the user and decide by the user's own rights. A
session also has what the proxy knows of the user's clients, so no user can touch the clients of another user. Without
authentication all calls share one session, which signs with the proxy's own credentials.

A session is opened by its first call, and closed when it was idle for long, or when the user is deleted, disabled or
has another password.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager

from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import SkylarkError
from skylark.mqproxy.brokers import Brokers
from skylark.mqproxy.clients import Clients
from skylark.mqproxy.metadata import Metadata
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.polls import Polls
from skylark.mqproxy.pulling import Queues
from skylark.mqproxy.registrations import Questions, RegistrationRequests, Registrations
from skylark.mqproxy.renewals import RenewalCounts, Renewals
from skylark.mqproxy.signatures import signature_of, unauthorized
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.transactions import Halves, TransactionProducers
from skylark.mqproxy.users import KnownUsers
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.net.tls.settings import Tls
from skylark.remoting.protocol.signature import Credentials
from skylark.sdk.aio import Client, Producer
from skylark.sdk.aio.facade import hosted

logger = logging.getLogger(__name__)

# The most sessions. Each holds connections to the brokers that its calls need, and some tasks.
MAX_SESSIONS = 1_000
IDLE_S = 60.0
# The most calls of one user whose messages are being expanded; other calls wait, with their messages compressed.
MAX_EXPANDING = 8
# How long calls in progress may take when a user's rights end. When the proxy stops, calls have ended before.
CLOSE_TIMEOUT_S = 30.0


class Session:
    """What the calls of one user share. ``username`` is empty when calls need no signature.

    ``client`` is the session's own client, which is not open yet.
    """

    def __init__(
        self,
        options: ProxyOptions,
        client: Client,
        metadata: Metadata,
        credentials: Credentials | None,
        username: str,
        counts: RenewalCounts,
    ) -> None:
        self.username = username
        self._credentials = credentials
        self._options = options
        self._stack = AsyncExitStack()
        self._client = client
        # Sends answer with the status of a weaker acknowledgement instead of raising.
        self.producer = Producer(
            self._client, group="mqproxy", accept_weaker=True, max_message_bytes=options.most_body_bytes
        )
        self.brokers = Brokers(self._client)
        loop = asyncio.get_running_loop()
        self.halves = Halves(
            self._client,
            max_message_bytes=options.most_body_bytes,
            asked=lambda check: loop.call_soon_threadsafe(self.transactions.asked, check),
        )
        self.queues = Queues(self._client)
        self.clients = Clients(options)
        self.renewals = Renewals(self.brokers, options, SystemClock(), self.clients.is_alive, counts)
        self.polls = Polls(self.brokers, self.renewals, self.clients)
        self.questions = Questions(self.clients)
        self._registering = RegistrationRequests(self._client, questions=self.questions, loop=loop)
        self.registrations = Registrations(self._registering, self.clients)
        self.transactions = TransactionProducers(self.halves, metadata, self.clients, options)
        # Work that no call waits for.
        self._tasks: list[asyncio.Task[None]] = []
        #: Set when the user may not sign in any more.
        self.has_ended = asyncio.Event()
        #: Held by calls while their compressed messages are expanded and sent.
        self.expanding = asyncio.Semaphore(MAX_EXPANDING)
        self._calls = 0
        self._is_unused = asyncio.Event()
        self._is_unused.set()
        self.used_at = _now_s()

    @contextmanager
    def used(self) -> Iterator[None]:
        """A block in which a call is carried out, and the session stays open."""
        self._calls += 1
        self._is_unused.clear()
        try:
            yield
        finally:
            self._calls -= 1
            self.used_at = _now_s()
            if not self._calls:
                self._is_unused.set()

    def has_secret(self, secret: str) -> bool:
        """Whether the session signs with this secret."""
        return self._credentials is not None and self._credentials.secret_key == secret

    @property
    def is_idle(self) -> bool:
        """Whether the session may be closed: no call is in progress, and no client is known."""
        return not self._calls and not self.clients.count_alive()

    async def open(self) -> None:
        """Open the SDK's clients. They connect when they are used."""
        async with AsyncExitStack() as stack:
            for client in (self._client, self.producer, self.brokers, self.halves, self.queues, self._registering):
                await stack.enter_async_context(client)
            self._stack = stack.pop_all()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(run()) for run in (self.renewals.run, self.transactions.run, self.registrations.run)
        ]

    async def close(self) -> None:
        """Wait for the calls in progress, and close."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._is_unused.wait()
        except TimeoutError:
            logger.warning("the calls of user %s have not ended in %.0f s, they fail", self.username, CLOSE_TIMEOUT_S)
        try:
            await self.polls.close()
            for task in self._tasks:
                task.cancel()
            ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            await self._stack.aclose()
        _raise_first(ends)


class Sessions:
    """The sessions of a proxy, for the calls that it gets. ``host`` is the client in whose thread they run."""

    def __init__(
        self, options: ProxyOptions, host: Client, tls: Tls | None, users: KnownUsers, metadata: Metadata
    ) -> None:
        self.metadata = metadata
        self._options = options
        self._host = host
        self._tls = tls
        self._users = users
        self.renewals = RenewalCounts()
        self._open: dict[str, asyncio.Task[Session]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._scanning: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Sessions":
        if self._options.is_authenticating:
            self._scanning = asyncio.get_running_loop().create_task(self._end_unused())
        else:
            await asyncio.shield(self._begin("", self._options.inner_credentials))
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._scanning is not None:
            self._scanning.cancel()
            await asyncio.wait({self._scanning})
        for name in list(self._open):
            self._end(name)
        # Closing a session may take as long as its calls, so all sessions close at once.
        ends: list[BaseException | None] = []
        while self._closing:
            ends += await asyncio.gather(*self._closing, return_exceptions=True)
        _raise_first(ends)
        if self._scanning is not None and not self._scanning.cancelled():
            self._scanning.result()  # raises the task's error

    async def of_call(self, metadata: Mapping[str, str | bytes]) -> Session:
        """The session for a call with this metadata. Refused when the call must be signed, and is not."""
        if not self._options.is_authenticating:
            return await asyncio.shield(self._open[""])
        signature = signature_of(metadata)
        secret = await self._users.secret_of(signature)
        return await self._of_user(signature.username, secret)

    async def _of_user(self, name: str, secret: str) -> Session:
        while True:
            opening = self._open.get(name) or self._begin(name, self._credentials_of(name, secret))
            # A caller that is cancelled does not end the task for which others wait, too.
            session = await asyncio.shield(opening)
            # While this call waited, the session may have been closed, and its clients with it.
            if self._open.get(name) is not opening:
                continue
            if session.has_secret(secret):
                return session
            logger.info("user %s has another password", name)
            self._end(name)

    def _credentials_of(self, name: str, secret: str) -> Credentials:
        # A caller must not choose, by a name or a message, what is signed for a server that a stranger registered.
        plain = self._options.plain_signature_addresses
        return Credentials(name, secret, plain_signature_addresses=plain)

    def _begin(self, name: str, credentials: Credentials | None) -> "asyncio.Task[Session]":
        """Open a session. Refused when there are too many sessions."""
        if len(self._open) >= MAX_SESSIONS:
            # A session with clients is never closed to make room: one user must not end the calls of another.
            idle = [session for session in self._sessions() if session.is_idle]
            if not idle:
                raise Refused(wire.TOO_MANY_REQUESTS, f"the proxy serves {MAX_SESSIONS} users already")
            self._end(min(idle, key=lambda session: session.used_at).username)
        opening = self._open[name] = asyncio.get_running_loop().create_task(self._opened(name, credentials))
        return opening

    async def _opened(self, name: str, credentials: Credentials | None) -> Session:
        client = hosted(Client(self._options.namesrv_addr, credentials=credentials, tls=self._tls), self._host)
        session = Session(self._options, client, self.metadata, credentials, name, self.renewals)
        try:
            await session.open()
        except BaseException:
            del self._open[name]
            raise
        return session

    def client_counts(self) -> Counter[wire.ClientType]:
        """How many clients of each kind there are. May be called from another thread, as the next."""
        return sum((session.clients.counts() for session in self._sessions()), Counter())

    def renewed_count(self) -> int:
        """How many messages are kept hidden for clients."""
        return sum(len(session.renewals) for session in self._sessions())

    def _sessions(self) -> list[Session]:
        return [task.result() for task in list(self._open.values()) if task.done() and task.exception() is None]

    def _end(self, name: str) -> None:
        """Close a session, once its calls have ended."""
        opening = self._open.pop(name)

        async def close() -> None:
            try:
                session = await opening
            except (SkylarkError, OSError):  # the session could not be opened, and its callers get the error
                return
            # Streams and waiting receives end first: `close` waits for all calls.
            session.has_ended.set()
            await session.close()

        task = asyncio.get_running_loop().create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _end_unused(self) -> None:
        """End the sessions of users who may not sign in any more, and unused sessions."""
        while True:
            # The users read below are at most half of userCacheRefreshSeconds old, so streams end within this time.
            await asyncio.sleep(self._options.user_cache_refresh_seconds / 2)
            for session in self._sessions():
                if await self._is_over(session) and session.username in self._open:
                    self._end(session.username)

    async def _is_over(self, session: Session) -> bool:
        if session.is_idle and session.used_at + IDLE_S < _now_s():
            return True
        try:
            return not session.has_secret(await self._users.secret(session.username))
        except Refused as refusal:
            if refusal.code == wire.UNAUTHORIZED:
                logger.info("the session of a user ends: %s", refusal.text)
                return True
            # The users cannot be read: then each call is refused.
            return False


def ended(session: Session) -> Refused:
    """The error that the streams of a session get when it ends."""
    return unauthorized(f"User:{session.username} was changed or deleted.")


def _raise_first(ends: Iterable[BaseException | None]) -> None:
    """Raise the first error of tasks; a cancellation does not count."""
    for end in ends:
        if end is not None and not isinstance(end, asyncio.CancelledError):
            raise end


def _now_s() -> float:
    return asyncio.get_running_loop().time()
