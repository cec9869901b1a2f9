"""Users, as administrators see them: 3001 to 3005, and both tables for a slave (7101).

A change is answered when it is on disk. Passwords are in the answer only to a request that a super user signed: mqadmin
copyUser needs them, and a slave. Neighbours: meta/auth.py, security/users; policies.py.
"""

import logging

from broker.meta.auth import Acls, Users
from broker.options import BrokerOptions
from broker.part import Part
from broker.security.users.checks import (
    DISABLE,
    MAX_USERS,
    SUPER,
    checked_user,
    checked_username,
    refuse,
    subject_of,
)
from broker.security.users.guard import Logins
from broker.stored_changes import Durable, refused_when_not_stored
from remoting.net.answers import answer_steps, answer_with
from remoting.net.channel import Channel
from remoting.net.server import Handler, SlowHandler
from remoting.net.steps import StepHandler, Steps
from remoting.protocol.command import Command
from remoting.protocol.dialect import dialect_for, encode_body
from remoting.protocol.requests.auth import (
    AUTH_CREATE_USER,
    AUTH_DELETE_USER,
    AUTH_GET_USER,
    AUTH_LIST_USER,
    AUTH_UPDATE_USER,
    GET_AUTH_TABLES,
    AuthTables,
    UserInfo,
    UserInfos,
)

logger = logging.getLogger(__name__)


class UserHandlers(Part):
    """See the module."""

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
        """3001."""
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
        """3002: what the body leaves out stays as it is."""
        name = checked_username(AUTH_UPDATE_USER.header(request).username)
        old = self._users.get(name)
        if old is None:
            raise refuse(f"The user is not exist: create {name} with createUser")
        user = checked_user(AUTH_UPDATE_USER.body(request), name, old)
        if SUPER in (user.user_type, old.user_type):
            self._check_super(channel, request, "update")
        if user.user_type != SUPER or user.user_status == DISABLE:
            self._check_not_last(old)
        with refused_when_not_stored():
            if user != old:
                self._users.put(user)
            await self._durable()
        logger.info("user %s set by %s: %s %s", name, channel.remote, user.user_type, user.user_status)
        return request.respond()

    async def delete(self, channel: Channel, request: Command) -> Command:
        """3003: with the user's policies. To delete a user who does not exist is no error."""
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
        """3004: no body when there is no such user, as in RocketMQ."""
        user = self._users.get(checked_username(AUTH_GET_USER.header(request).username))
        if user is None:
            return request.respond()
        return answer_with(AUTH_GET_USER, request, self._shown([user], channel, request)[0])

    def list_users(self, channel: Channel, request: Command) -> Command:
        """3005."""
        part = AUTH_LIST_USER.header(request).filter or ""
        found = [user for name, user in sorted(self._users.all().items()) if part in name]
        if not found:
            return request.respond()
        return request.respond(body=encode_body(UserInfos(self._shown(found, channel, request)), dialect_for(request)))

    def tables(self, channel: Channel, request: Command) -> Steps[Command]:
        """7101: for a slave, which signs as a super user."""
        if not self._logins.is_by_super(channel, request):
            raise refuse("only a super user may copy users: set innerClientAuthenticationCredentials in the slave")
        users, acls = self._users, self._acls
        tables = AuthTables([*users.all().values()], [*acls.all().values()], users.data_version, acls.data_version)
        limit = channel.max_frame_bytes
        return (yield from answer_steps(GET_AUTH_TABLES, request, tables, limit, remedy="raise frameMaxLength"))

    def _shown(self, users: list[UserInfo], channel: Channel, request: Command) -> list[UserInfo]:
        if self._logins.is_by_super(channel, request):
            return users
        return [UserInfo(user.username, None, user.user_type, user.user_status) for user in users]

    def _check_super(self, channel: Channel, request: Command, what: str) -> None:
        if self._options.authentication_enabled and not self._logins.is_by_super(channel, request):
            raise refuse(f"The super user can only be {what} by super user")

    def _check_not_last(self, user: UserInfo) -> None:
        """Without a super user nobody could change users any more, except who can change the conf file."""
        if not self._options.authentication_enabled or not _can_rule(user):
            return
        if not any(_can_rule(other) for other in self._users.all().values() if other is not user):
            raise refuse(f"{user.username} is the last super user, and authenticationEnabled is on: create another")


def _can_rule(user: UserInfo) -> bool:
    return user.user_type == SUPER and user.user_status != DISABLE
