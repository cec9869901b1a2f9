"""Users (3001 to 3005) and their policies (3006 to 3010), as administrators see them; why a request is refused (7102).

A change is answered when it is on disk. An answer contains passwords only if a super user signed the request: the
proxy, mqadmin copyUser, and a slave that copies both tables (7101) need them. Passwords are encrypted, by TLS or with
the key of the connection; only the callers that plainPasswordsTo names get them unencrypted. 7102, for `mqadmin
explainAcl`, asks the rules that are in force, whether these are policies or accounts in files.
Neighbours: meta/auth.py, security/users; accounts.py has the accounts in files.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import islice
from secrets import token_bytes

from skylark.broker.meta.auth import Acls, Users
from skylark.broker.meta.table import Durable, refused_when_not_stored
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.security.access import Explanation, host_of, needs_about
from skylark.broker.security.users.checks import (
    DISABLE,
    MAX_USERS,
    SUPER,
    check_size,
    checked_acl,
    checked_policy_type,
    checked_resource,
    checked_user,
    checked_username,
    containing,
    merged,
    refuse,
    rows_of,
    subject_of,
    user_of_subject,
    without,
)
from skylark.broker.security.users.guard import Logins
from skylark.broker.security.users.policies import entry_text
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.net.answers import answer_steps, answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, SlowHandler
from skylark.remoting.net.steps import StepHandler, Steps
from skylark.remoting.protocol.bounded_body import BodyLimits
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import dialect_for, encode_body
from skylark.remoting.protocol.plain_codes import whos
from skylark.remoting.protocol.request import Request
from skylark.remoting.protocol.requests.acl import EXPLAIN_ACCESS, AccessExplanation, AccessStep
from skylark.remoting.protocol.requests.auth import (
    AUTH_CREATE_ACL,
    AUTH_CREATE_USER,
    AUTH_DELETE_ACL,
    AUTH_DELETE_USER,
    AUTH_GET_ACL,
    AUTH_GET_USER,
    AUTH_LIST_ACL,
    AUTH_LIST_USER,
    AUTH_UPDATE_ACL,
    AUTH_UPDATE_USER,
    GET_AUTH_TABLES,
    AclInfo,
    AclInfos,
    AclRequestHeader,
    AuthTables,
    UserInfo,
    UserInfos,
)
from skylark.remoting.protocol.rights import Need
from skylark.remoting.protocol.sealing import NONCE_BYTES, SEALED_FIELD, seal
from skylark.remoting.protocol.signature import is_plain

logger = logging.getLogger(__name__)


class UserHandlers(Part):
    """Handles the requests about users: 3001 to 3005, and 7101 of slaves."""

    def __init__(self, users: Users, acls: Acls, logins: Logins, options: BrokerOptions, durable: Durable) -> None:
        self._users = users
        self._acls = acls
        self._logins = logins
        self._options = options
        self._durable = durable

    def handlers(self) -> dict[int, Handler]:
        return {AUTH_GET_USER.code: self.get, AUTH_LIST_USER.code: self.list_users}

    def step_handlers(self) -> dict[int, StepHandler]:
        return {GET_AUTH_TABLES.code: self.tables}

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {
            AUTH_CREATE_USER.code: self.create,
            AUTH_UPDATE_USER.code: self.update,
            AUTH_DELETE_USER.code: self.delete,
        }

    async def create(self, channel: Channel, request: Command) -> Command:
        """3001: create a user; refused if the user exists."""
        name = checked_username(AUTH_CREATE_USER.header(request).username)
        user = checked_user(AUTH_CREATE_USER.body(request), name, None)
        if user.user_type == SUPER:
            self._check_super(channel, request, "create")
        if self._users.get(name) is not None:
            raise refuse(f"The user is existed: change {name} with updateUser")
        if len(self._users.all()) >= MAX_USERS:
            raise refuse(f"There are {MAX_USERS} users, which are the most: delete some")
        with refused_when_not_stored():
            self._users.put(user)
            await self._durable()
        logger.info("user %s (%s) created by %s", name, user.user_type, channel.remote)
        return request.respond()

    async def update(self, channel: Channel, request: Command) -> Command:
        """3002: change a user; what the body leaves out stays as it is."""
        name = checked_username(AUTH_UPDATE_USER.header(request).username)
        old = self._users.get(name)
        if old is None:
            raise refuse(f"The user is not exist: create {name} with createUser")
        user = checked_user(AUTH_UPDATE_USER.body(request), name, old)
        if SUPER in (user.user_type, old.user_type):
            self._check_super(channel, request, "update")
        # Demoting or disabling the last super user is like deleting it: nobody could undo the change.
        if user.user_type != SUPER or user.user_status == DISABLE:
            self._check_not_last(old)
        with refused_when_not_stored():
            if user != old:
                self._users.put(user)
            await self._durable()
        logger.info("user %s set by %s: %s %s", name, channel.remote, user.user_type, user.user_status)
        return request.respond()

    async def delete(self, channel: Channel, request: Command) -> Command:
        """3003: delete a user, with the user's policies; no error when there is no such user."""
        name = checked_username(AUTH_DELETE_USER.header(request).username)
        old = self._users.get(name)
        if old is None:
            return request.respond()
        if old.user_type == SUPER:
            self._check_super(channel, request, "delete")
        self._check_not_last(old)
        with refused_when_not_stored():
            # The user first: after a kill in between, policies without a user are left, which allow nothing.
            self._users.delete(name)
            self._acls.delete(subject_of(name))
            await self._durable()
        logger.info("user %s deleted by %s", name, channel.remote)
        return request.respond()

    def get(self, channel: Channel, request: Command) -> Command:
        """3004: one user; no body when there is no such user, as in RocketMQ."""
        user = self._users.get(checked_username(AUTH_GET_USER.header(request).username))
        if user is None:
            return request.respond()
        way = self._way_of_passwords(channel, request)
        return way.answer(answer_with(AUTH_GET_USER, request, way.shown([user])[0]))

    def list_users(self, channel: Channel, request: Command) -> Command:
        """3005: the users whose names contain a text; no body without any, as in RocketMQ."""
        part = AUTH_LIST_USER.header(request).filter or ""
        found = [user for name, user in sorted(self._users.all().items()) if part in name]
        if not found:
            return request.respond()
        way = self._way_of_passwords(channel, request)
        return way.answer(request.respond(body=encode_body(UserInfos(way.shown(found)), dialect_for(request))))

    def tables(self, channel: Channel, request: Command) -> Steps[Command]:
        """7101: all users and policies, for a slave, which signs as a super user."""
        way = self._way_of_passwords(channel, request)
        if not (way.has_passwords or self._logins.is_by_super(channel, request)):
            raise refuse("only a super user may copy users: set innerClientAuthenticationCredentials in the slave")
        if not way.has_passwords:
            raise refuse(
                "users are copied encrypted only: upgrade the slave, use TLS, or name its user and address in"
                " plainPasswordsTo"
            )
        users, acls = self._users, self._acls
        tables = AuthTables([*users.all().values()], [*acls.all().values()], users.data_version, acls.data_version)
        limit = channel.max_frame_bytes
        return way.answer(
            (yield from answer_steps(GET_AUTH_TABLES, request, tables, limit, remedy="raise frameMaxLength"))
        )

    def _way_of_passwords(self, channel: Channel, request: Command) -> "_WayOfPasswords":
        user = self._logins.super_of(channel, request)
        if user is None:
            return _WayOfPasswords(False)
        if channel.is_encrypted or whos(self._options.plain_passwords_to).has(user.username, host_of(channel.remote)):
            return _WayOfPasswords(True)
        signatures = channel.signatures
        # Clients that sign for this server's address also read sealed answers; older clients do neither.
        if is_plain(request) or signatures is None or not signatures.server or not user.password:
            return _WayOfPasswords(False)
        return _WayOfPasswords(True, signatures.sealing_key(user.password))

    def _check_super(self, channel: Channel, request: Command, what: str) -> None:
        if self._options.authentication_enabled and not self._logins.is_by_super(channel, request):
            raise refuse(f"The super user can only be {what} by super user")

    def _check_not_last(self, user: UserInfo) -> None:
        """Refuse to lose the last super user: without one, users could be changed only through the conf file."""
        if not self._options.authentication_enabled or not _can_rule(user):
            return
        if not any(_can_rule(other) for other in self._users.all().values() if other is not user):
            raise refuse(f"{user.username} is the last super user, and authenticationEnabled is on: create another")


@lazy_dataclass(frozen=True, slots=True)
class _WayOfPasswords:
    """How an answer carries passwords: left out, in plain text, or sealed with ``key``."""

    has_passwords: bool
    key: bytes | None = field(default=None, repr=False)

    def shown(self, users: list[UserInfo]) -> list[UserInfo]:
        # Left out rather than starred: RocketMQ's copyUser would make the stars a user's password.
        if self.has_passwords:
            return users
        return [UserInfo(user.username, None, user.user_type, user.user_status) for user in users]

    def answer(self, made: Command) -> Command:
        if self.key is not None and made.body:
            made.body = seal(self.key, made.body, token_bytes(NONCE_BYTES))
            made.ext = {**(made.ext or {}), SEALED_FIELD: "true"}
        return made


def _can_rule(user: UserInfo) -> bool:
    return user.user_type == SUPER and user.user_status != DISABLE


#: Explains a decision. Arguments: the account, the client's address, the needs of the request, and its code.
Explainer = Callable[[str, str, Sequence[Need], int], Explanation]


class ExplainHandlers(Part):
    """Explains the decisions of access control. ``explain`` is None without access control."""

    def __init__(self, explain: Explainer | None) -> None:
        self._explain = explain

    def handlers(self) -> dict[int, Handler]:
        return {EXPLAIN_ACCESS.code: self.explain}

    def explain(self, channel: Channel, request: Command) -> Command:
        """7102: whether a user may send a request, and by which policy; without access control everybody may."""
        header = EXPLAIN_ACCESS.header(request)
        needs = needs_about(header.request_code, header.topic, header.group)
        if not needs and not (header.topic or header.group):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the request is about a topic or a group: give its name")
        if self._explain is None:
            found = Explanation(True, "this broker has no access control: everybody may do everything", [])
        else:
            found = self._explain(header.access_key, header.remote_address, needs, header.request_code)
        steps = [AccessStep(*step) for step in found.steps]
        return answer_with(EXPLAIN_ACCESS, request, AccessExplanation(found.is_allowed, found.text, steps))


# Entries in a line of the log.
_SHOWN = 20
# A body with MAX_ENTRIES entries.
_LIMITS = BodyLimits(max_bytes=512 * 1024, max_entries=20_000)

_Change = Request[AclRequestHeader, AclInfo, None, None]


class PolicyHandlers(Part):
    """Handles the requests about policies: 3006 to 3010."""

    def __init__(self, users: Users, acls: Acls, durable: Durable) -> None:
        self._users = users
        self._acls = acls
        self._durable = durable

    def handlers(self) -> dict[int, Handler]:
        return {AUTH_GET_ACL.code: self.get, AUTH_LIST_ACL.code: self.list_acls}

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {
            AUTH_CREATE_ACL.code: self.create,
            AUTH_UPDATE_ACL.code: self.update,
            AUTH_DELETE_ACL.code: self.delete,
        }

    async def create(self, channel: Channel, request: Command) -> Command:
        """3006: as in RocketMQ the same as 3007."""
        return await self._put(channel, request, AUTH_CREATE_ACL)

    async def update(self, channel: Channel, request: Command) -> Command:
        """3007: each entry replaces the present entries about the same resource; all other entries stay."""
        return await self._put(channel, request, AUTH_UPDATE_ACL)

    async def _put(self, channel: Channel, request: Command, what: _Change) -> Command:
        subject = self._subject(what.header(request).subject)
        # The limit is one for all users, so that many with few entries cannot make the table large.
        acl = merged(self._acls.get(subject), checked_acl(what.body(request, _LIMITS), subject))
        others = [other for other in self._acls.all().values() if other.subject != subject]
        check_size(acl, sum(len(list(rows_of(other))) for other in others))
        with refused_when_not_stored():
            if acl != self._acls.get(subject):
                self._acls.put(acl)
            await self._durable()
        shown = "; ".join(f"{policy_type} {entry_text(entry)}" for policy_type, entry in islice(rows_of(acl), _SHOWN))
        logger.info("policies of %s set by %s, now %s", subject, channel.remote, shown)
        return request.respond()

    async def delete(self, channel: Channel, request: Command) -> Command:
        """3008: delete all policies of a subject, or its policies about one resource."""
        header = AUTH_DELETE_ACL.header(request)
        subject = self._subject(header.subject)
        old = self._acls.get(subject)
        if old is None:
            raise refuse(f"The acl is not exist: {subject} has no policies")
        left = None
        if header.resource and header.resource.strip():
            left = without(old, checked_policy_type(header.policy_type), checked_resource(header.resource))
        with refused_when_not_stored():
            if left is None:
                self._acls.delete(subject)
            elif left != old:
                self._acls.put(left)
            await self._durable()
        logger.info("policies of %s about %s deleted by %s", subject, header.resource or "everything", channel.remote)
        return request.respond()

    def get(self, channel: Channel, request: Command) -> Command:
        """3009: the policies of a user; no body when the user has none, as in RocketMQ."""
        acl = self._acls.get(self._subject(AUTH_GET_ACL.header(request).subject))
        return request.respond() if acl is None else answer_with(AUTH_GET_ACL, request, acl)

    def list_acls(self, channel: Channel, request: Command) -> Command:
        """3010: the policies of all subjects, or all that match a filter; without any, no body, as in RocketMQ."""
        header = AUTH_LIST_ACL.header(request)
        subjects, resources = header.subject_filter or "", header.resource_filter or ""
        acls = [containing(acl, resources) for subject, acl in sorted(self._acls.all().items()) if subjects in subject]
        found = [acl for acl in acls if acl is not None]
        if not found:
            return request.respond()
        return request.respond(body=encode_body(AclInfos(found), dialect_for(request)))

    def _subject(self, text: str) -> str:
        name = user_of_subject(text.strip())
        if self._users.get(name) is None:
            raise refuse(f"The subject of {text} is not exist: create the user with createUser")
        return subject_of(name)
