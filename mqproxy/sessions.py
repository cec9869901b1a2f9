"""The users of calls, and the session of each user, with which calls are carried out.

A session has clients of the SDK that sign as its user, so brokers see the user and decide by the user's own rights. A
session also has what the proxy knows of the user's clients, so no user can touch the clients of another user. Without
authentication all calls share one session, which signs with the proxy's own credentials.

A session is opened by its first call, and closed when it was idle for long, or when the user is deleted, disabled or
has another password.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Self

import trio

from skylark.mqcommon.clock import SystemClock
from skylark.mqproxy.brokers import Brokers
from skylark.mqproxy.clients import Clients
from skylark.mqproxy.ending import Ending
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
from skylark.remoting.protocol.signature import Credentials
from skylark.sdk.client import Client
from skylark.sdk.producer.producer import Producer
from skylark.sdk.runtime import survived

logger = logging.getLogger(__name__)

# The most sessions. Each holds connections to the brokers that its calls need, and some tasks.
MAX_SESSIONS = 1_000
IDLE_S = 60.0
# The most calls of one user whose messages are being expanded; other calls wait, with their messages compressed.
MAX_EXPANDING = 8
# How long calls in progress may take when a user's rights end. When the proxy stops, calls have ended before.
CLOSE_TIMEOUT_S = 30.0

#: Makes a client of the SDK, not open yet, that signs with these credentials.
MakeClient = Callable[[Credentials | None], Client]


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
        self._client = client
        # Sends answer with the status of a weaker acknowledgement instead of raising.
        self.producer = Producer(client, group="mqproxy", accept_weaker=True, max_message_bytes=options.most_body_bytes)
        self.producer.has_many_senders = True
        self.brokers = Brokers(client)
        self.halves = Halves(
            client,
            max_message_bytes=options.most_body_bytes,
            asked=lambda check: self.transactions.asked(check),
        )
        self.queues = Queues(client)
        self.clients = Clients(options)
        self.renewals = Renewals(self.brokers, options, SystemClock(), self.clients.is_alive, counts)
        self.polls = Polls(self.brokers, self.renewals, self.clients)
        self.questions = Questions(self.clients)
        self._registering = RegistrationRequests(client, questions=self.questions)
        self.registrations = Registrations(self._registering, self.clients)
        self.transactions = TransactionProducers(self.halves, metadata, self.clients, options)
        self.is_open = False
        # Set when the session is open, or could not be opened, for the reason that ``_failure`` says.
        self._has_opened = trio.Event()
        self._failure: Exception | None = None
        #: Begins when the user may not sign in any more, or nobody needs the session.
        self.ending = Ending()
        #: Held by calls while their compressed messages are expanded and sent.
        self.expanding = trio.Semaphore(MAX_EXPANDING)
        self._calls = 0
        # Set while the session ends and no call is in progress.
        self._is_unused = trio.Event()
        self.used_at = trio.current_time()

    def begin_call(self) -> None:
        """Count a call in progress: until `end_call` the session stays open, as far as its user may sign in."""
        self._calls += 1

    def end_call(self) -> None:
        """Count a call as ended."""
        self._calls -= 1
        self.used_at = trio.current_time()
        if not self._calls and self.ending.has_begun:
            self._is_unused.set()

    def __enter__(self) -> None:
        """Begin a block in which a call is carried out, and the session stays open."""
        self.begin_call()

    def __exit__(self, *error: object) -> None:
        self.end_call()

    def has_secret(self, secret: str) -> bool:
        """Whether the session signs with this secret."""
        return self._credentials is not None and self._credentials.secret_key == secret

    @property
    def is_idle(self) -> bool:
        """Whether the session may be closed: no call is in progress, and no client is known."""
        return not self._calls and not self.clients.count_alive()

    async def opened(self) -> Self:
        """This session, once it is open; raises the error for which it cannot be opened."""
        await self._has_opened.wait()
        if self._failure is not None:
            raise self._failure
        return self

    async def run(self) -> None:
        """Open the SDK's clients, which connect when they are used; close them when the session ends.

        An error that keeps the session from being opened is raised by `opened`, any other error here.
        """
        try:
            async with (
                self._client, self.producer, self.brokers, self.halves, self.queues, self._registering,
                trio.open_nursery() as nursery,
            ):  # fmt: skip
                await nursery.start(self.polls.run)
                for work in (self.renewals.run, self.transactions.run, self.registrations.run):
                    nursery.start_soon(work)
                self.is_open = True
                self._has_opened.set()
                await self.ending.wait()
                self.is_open = False
                await self._calls_have_ended()
                await self.polls.close()
                nursery.cancel_scope.cancel()
        except Exception as error:
            if self._has_opened.is_set():
                raise
            self._failure = error
        finally:
            self.is_open = False
            self.ending.begin()
            self._has_opened.set()

    async def _calls_have_ended(self) -> None:
        if not self._calls:
            return
        with trio.move_on_after(CLOSE_TIMEOUT_S):
            await self._is_unused.wait()
            return
        logger.warning("the calls of user %s have not ended in %.0f s, they fail", self.username, CLOSE_TIMEOUT_S)


class Sessions:
    """The sessions of a proxy, for the calls that it gets. Use it in a block of `serving`."""

    def __init__(self, options: ProxyOptions, make_client: MakeClient, users: KnownUsers, metadata: Metadata) -> None:
        self._metadata = metadata
        self._options = options
        self._make_client = make_client
        self._users = users
        self.renewals = RenewalCounts()
        self._open: dict[str, Session] = {}
        self._nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Self]:
        """A block in which calls find their sessions; after it, sessions end once their calls have ended.

        Raises the SkylarkError for which the session of all calls cannot be opened.
        """
        scanning = trio.CancelScope()
        failure: Exception | None = None
        async with trio.open_nursery() as self._nursery:
            if self._options.is_authenticating:
                self._nursery.start_soon(self._end_unused, scanning)
            else:
                try:
                    await self._begin("", self._options.inner_credentials).opened()
                except Exception as error:  # raised below, and not in a group
                    failure = error
            if failure is None:
                yield self
            scanning.cancel()
            # Closing a session may take as long as its calls, so all sessions close at once.
            for name in list(self._open):
                self._end(name)
        if failure is not None:
            raise failure

    def known(self, headers: Mapping[str, str]) -> Session | None:
        """As `of_call`; None when that takes time."""
        if not self._options.is_authenticating:
            session, secret = self._open.get(""), None
        else:
            signature = signature_of(headers)
            session, secret = self._open.get(signature.username), self._users.known_secret_of(signature)
            if secret is None:
                return None
        if session is None or not session.is_open or not (secret is None or session.has_secret(secret)):
            return None
        return session

    async def of_call(self, headers: Mapping[str, str]) -> Session:
        """The session for a call with these headers. Refused when the call must be signed, and is not."""
        if not self._options.is_authenticating:
            return await (self._open.get("") or self._begin("", self._options.inner_credentials)).opened()
        signature = signature_of(headers)
        secret = await self._users.secret_of(signature)
        return await self._of_user(signature.username, secret)

    async def _of_user(self, name: str, secret: str) -> Session:
        while True:
            session = self._open.get(name) or self._begin(name, self._credentials_of(name, secret))
            await session.opened()
            # While this call waited, the session may have been closed, and its clients with it.
            if self._open.get(name) is not session:
                continue
            if session.has_secret(secret):
                return session
            logger.info("user %s has another password", name)
            self._end(name)

    def _credentials_of(self, name: str, secret: str) -> Credentials:
        # A caller must not choose, by a name or a message, what is signed for a server that a stranger registered.
        plain = self._options.plain_signature_addresses
        return Credentials(name, secret, plain_signature_addresses=plain)

    def _begin(self, name: str, credentials: Credentials | None) -> Session:
        """Open a session. Refused when there are too many sessions."""
        assert self._nursery is not None
        if len(self._open) >= MAX_SESSIONS:
            # A session with clients is never closed to make room: one user must not end the calls of another.
            idle = [session for session in self._open.values() if session.is_open and session.is_idle]
            if not idle:
                raise Refused(wire.TOO_MANY_REQUESTS, f"the proxy serves {MAX_SESSIONS} users already")
            self._end(min(idle, key=lambda session: session.used_at).username)
        client = self._make_client(credentials)
        session = Session(self._options, client, self._metadata, credentials, name, self.renewals)
        self._open[name] = session
        self._nursery.start_soon(self._run, session)
        return session

    async def _run(self, session: Session) -> None:
        try:
            await session.run()
        except Exception:
            # The session's calls have failed.
            logger.exception(
                "the session of user %r ended by an error; the user's next call opens another session", session.username
            )
        finally:
            if self._open.get(session.username) is session:
                del self._open[session.username]

    def client_counts(self) -> Counter[wire.ClientType]:
        """How many clients of each kind there are."""
        return sum((session.clients.counts() for session in self._open.values()), Counter())

    def renewed_count(self) -> int:
        """How many messages are kept hidden for clients."""
        return sum(len(session.renewals) for session in self._open.values())

    def _end(self, name: str) -> None:
        """Close a session, once its calls have ended. Streams and waiting receives end at once."""
        self._open.pop(name).ending.begin()

    async def _end_unused(self, scope: trio.CancelScope) -> None:
        """End the sessions of users who may not sign in any more, and unused sessions; until ``scope`` is cancelled."""
        with scope:
            while True:
                # The users read below are at most half of userCacheRefreshSeconds old, so streams end within this time.
                await trio.sleep(self._options.user_cache_refresh_seconds / 2)
                for session in list(self._open.values()):
                    with survived("looking for sessions that are over"):
                        is_over = session.is_open and await self._is_over(session)
                        if is_over and self._open.get(session.username) is session:
                            self._end(session.username)

    async def _is_over(self, session: Session) -> bool:
        if session.is_idle and session.used_at + IDLE_S < trio.current_time():
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
