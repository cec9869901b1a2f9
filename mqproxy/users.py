"""The users of the brokers, with their secrets: read from brokers with the proxy's own credentials, and remembered.

A remembered user is read again after ``userCacheRefreshSeconds``, and at once when a signature does not fit, since the
password may be new. When no broker answers, the remembered user counts until it is ``userCacheExpiredSeconds`` old.
"""

import logging
from functools import partial
from typing import TypeVar

import trio

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.names import USERNAME_MAX_LENGTH, username_fault
from skylark.mqproxy.masters import ask_masters
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.shared import Shared
from skylark.mqproxy.signatures import CallSignature, unauthorized
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.requests.auth import UserInfo
from skylark.sdk.admin.client import Admin

logger = logging.getLogger(__name__)

V = TypeVar("V")

# Strangers can make up names. Names that no broker knows are remembered shortly, and apart from the users.
UNKNOWN_FRESH_S = 1.0
MAX_UNKNOWN = 1_000
# The most names that brokers are asked for at one time; calls of other users are refused meanwhile.
MAX_ASKED = 64
COMPLAINT_INTERVAL_S = 60.0

_DISABLED = "disable"


class KnownUsers:
    """Finds the user of a call. Questions to brokers are tasks of ``nursery``."""

    def __init__(self, admin: Admin, options: ProxyOptions, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._admin = admin
        self._fresh_s = options.user_cache_refresh_seconds
        self._usable_s = max(options.user_cache_expired_seconds, options.user_cache_refresh_seconds)
        self._most = options.user_cache_max_num
        # By name: (when it was read, the user). The name that was read the longest time ago comes first.
        self._known: dict[str, tuple[float, UserInfo]] = {}
        self._unknown: dict[str, float] = {}
        self._asking: dict[str, Shared[UserInfo | None]] = {}
        self._quiet_until = 0.0

    async def secret_of(self, signature: CallSignature) -> str:
        """The secret of the user who made ``signature``.

        Refused when there is no such user, or another secret made it.
        """
        name = signature.username
        user = await self._get(name, self._fresh_s)
        if not _is_made_by(signature, user):
            # The user is new, or has a new password or a new status.
            user = await self._get(name, UNKNOWN_FRESH_S)
        secret = self._checked(name, user)
        if not signature.is_made_with(secret):
            raise unauthorized("check signature failed.")
        return secret

    def known_secret_of(self, signature: CallSignature) -> str | None:
        """As `secret_of`; None when brokers must be asked."""
        known = self._known.get(signature.username)
        if known is None or trio.current_time() - known[0] >= self._fresh_s or not _is_made_by(signature, known[1]):
            return None
        return known[1].password

    async def secret(self, name: str) -> str:
        """The secret of a user, at most half as old as calls may use it. Refused when the user may not sign in."""
        return self._checked(name, await self._get(name, self._fresh_s / 2))

    async def _get(self, name: str, fresh_s: float) -> UserInfo | None:
        # The proxy signs a request with this name, which must not be able to pass for anything else.
        if username_fault(name) is not None:
            return None
        now_s = trio.current_time()
        known = self._known.get(name)
        if known is not None and now_s - known[0] < fresh_s:
            return known[1]
        asked_at = self._unknown.get(name)
        if asked_at is not None and now_s - asked_at < UNKNOWN_FRESH_S:
            return None
        asking = self._asking.get(name)
        if asking is None:
            if len(self._asking) >= MAX_ASKED:
                raise Refused(wire.TOO_MANY_REQUESTS, "the proxy looks for too many users now, try again")
            asking = self._asking[name] = Shared(self._nursery, partial(self._refresh, name))
        return await asking.result()

    async def _refresh(self, name: str) -> UserInfo | None:
        try:
            user = await self._ask(name)
        except SkylarkError as error:
            self._complain(f"users cannot be read from brokers, signatures are checked with what is known: {error}")
            known = self._known.get(name)
            # While brokers are away, known users may go on for some time, and no other user may begin.
            if known is None or trio.current_time() - known[0] >= self._usable_s:
                self._known.pop(name, None)
                raise _cannot_read() from None
            return known[1]
        finally:
            del self._asking[name]
        self._known.pop(name, None)
        self._unknown.pop(name, None)
        if user is None:
            _put(self._unknown, name, trio.current_time(), MAX_UNKNOWN)
        else:
            _put(self._known, name, (trio.current_time(), user), self._most)
        return user

    async def _ask(self, name: str) -> UserInfo | None:
        """The user, from the first broker that knows it."""
        brokers = (await self._admin.cluster_info()).broker_addr_table.values()
        asked = await ask_masters(brokers, lambda addr: self._admin.get_user(addr, name))
        # A user whom no answering broker knows may be known to a broker that does not answer: that is no refusal.
        if asked.found is None and asked.error is not None:
            raise asked.error
        return asked.found

    def _checked(self, name: str, user: UserInfo | None) -> str:
        """The secret of a user who may sign in; Refused with RocketMQ's texts for others."""
        if user is None:
            raise unauthorized(f"User:{name[:USERNAME_MAX_LENGTH]} is not found.")
        if user.user_status == _DISABLED:
            raise unauthorized(f"User:{name} is disabled.")
        if not user.password:
            self._complain(
                "brokers do not show passwords to the user of innerClientAuthenticationCredentials, so no signature can"
                " be checked: make it a super user (mqadmin updateUser -t Super)"
            )
            raise _cannot_read()
        return user.password

    def _complain(self, text: str) -> None:
        if trio.current_time() >= self._quiet_until:
            self._quiet_until = trio.current_time() + COMPLAINT_INTERVAL_S
            logger.error("%s", text)


def _is_made_by(signature: CallSignature, user: UserInfo | None) -> bool:
    if user is None or not user.password or user.user_status == _DISABLED:
        return False
    return signature.is_made_with(user.password)


def _cannot_read() -> Refused:
    return Refused(wire.INTERNAL_SERVER_ERROR, "the proxy cannot read the users of brokers, see its log")


def _put(table: dict[str, V], name: str, value: V, most: int) -> None:
    table[name] = value
    while len(table) > most:
        del table[next(iter(table))]
