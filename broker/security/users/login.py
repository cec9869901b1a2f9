"""Who sent a request, and whether the user may do what it asks for, by the tables of users and policies.

The refusals are RocketMQ's: NO_PERMISSION, with its texts. Neighbours: policies.py (decides), meta/auth.py (tables).
"""

from broker.meta.auth import Acls, Users
from broker.security.users.checks import DISABLE, MAX_NAME, SUPER, refuse, subject_of
from broker.security.users.policies import Decision, Policies
from remoting.net.channel import Channel
from remoting.protocol.command import Command, ext_text
from remoting.protocol.requests.auth import AclInfo, UserInfo
from remoting.protocol.signature import ACCESS_KEY_FIELD, is_signed_with

_NO_POLICY = Decision(False)
_SUPER = Decision(True, "a super user may do everything")


class Logins:
    """See the module. A change of the tables counts from the next request on."""

    def __init__(self, users: Users, acls: Acls) -> None:
        self._users = users
        self._acls = acls
        # Of each subject: the row, and what was made of it. Rows are replaced, never changed in place.
        self._made: dict[str, tuple[AclInfo, Policies]] = {}
        acls.on_change.append(self._made.clear)

    def user_of(self, channel: Channel, request: Command) -> UserInfo:
        """The enabled user whose secret signed ``request`` of ``channel``. RequestRefused when there is none."""
        name = ext_text((request.ext or {}).get(ACCESS_KEY_FIELD) or "")
        if not name:
            raise refuse("username cannot be null: this broker wants signed requests, give the client credentials")
        user = self._users.get(name)
        if user is None:
            raise refuse(f"User:{name[:MAX_NAME]} is not found.")
        if user.user_status == DISABLE:
            raise refuse(f"User:{name} is disabled.")
        if not user.password or not is_signed_with(request, user.password, channel.signatures):
            raise refuse("check signature failed.")
        return user

    def is_by_super(self, channel: Channel, request: Command) -> bool:
        """Whether a super user's secret signed ``request`` of ``channel``."""
        user = self._users.get(ext_text((request.ext or {}).get(ACCESS_KEY_FIELD) or ""))
        if user is None or user.user_type != SUPER or user.user_status == DISABLE or not user.password:
            return False
        return is_signed_with(request, user.password, channel.signatures)

    def decide(self, user: UserInfo, kind: str, name: str, actions: tuple[str, ...], host: str) -> Decision:
        """Whether ``user`` may do one of ``actions`` on the resource, from ``host``."""
        if user.user_type == SUPER:
            return _SUPER
        subject = subject_of(user.username)
        row = self._acls.get(subject)
        if row is None:
            return _NO_POLICY
        made = self._made.get(subject)
        if made is None or made[0] is not row:
            made = self._made[subject] = (row, Policies(row))
        return made[1].decide(kind, name, actions, host)
