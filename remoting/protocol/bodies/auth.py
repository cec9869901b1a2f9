"""Users, and what they may do (3001 to 3010): the bodies of RocketMQ's ACL 2.0.

Kinds, states and actions are texts here, as they arrive: what they may be, broker/security checks.
"""

from dataclasses import dataclass, field
from typing import Any, Self

from mqcommon.errors import ProtocolError
from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.kinds import TEXT, body_of, list_of


@dataclass(slots=True)
class UserInfo(Body):
    """A user. The password is in no repr, so that it gets into no log."""

    username: str = member(TEXT, "")
    password: str | None = field(default=None, repr=False, metadata={"kind": TEXT, "wire": None})
    #: Super or Normal.
    user_type: str | None = member(TEXT, None)
    #: enable or disable.
    user_status: str | None = member(TEXT, None)


@dataclass(slots=True)
class PolicyEntryInfo(Body):
    """Whether some actions on a resource are allowed. Without addresses it holds for all clients."""

    resource: str = member(TEXT, "")
    actions: list[str] = member(list_of(TEXT))
    source_ips: list[str] | None = member(list_of(TEXT), None)
    #: Allow or Deny.
    decision: str = member(TEXT, "")


@dataclass(slots=True)
class PolicyInfo(Body):
    """Entries of one type: Custom or Default."""

    policy_type: str | None = member(TEXT, None)
    entries: list[PolicyEntryInfo] = member(list_of(body_of(PolicyEntryInfo)))


@dataclass(slots=True)
class AclInfo(Body):
    """The policies of a subject, which is a user: ``User:name``."""

    subject: str = member(TEXT, "")
    policies: list[PolicyInfo] = member(list_of(body_of(PolicyInfo)))


@dataclass(slots=True)
class UserInfos(Body):
    """Users, as a JSON array (3005)."""

    users: list[UserInfo] = member(list_of(body_of(UserInfo)))

    def to_wire(self) -> Any:
        return [user.to_wire() for user in self.users]

    @classmethod
    def from_wire(cls, obj: Any) -> Self:
        return cls([UserInfo.from_wire(each) for each in _array(obj)])


@dataclass(slots=True)
class AclInfos(Body):
    """The policies of several subjects, as a JSON array (3010)."""

    acls: list[AclInfo] = member(list_of(body_of(AclInfo)))

    def to_wire(self) -> Any:
        return [acl.to_wire() for acl in self.acls]

    @classmethod
    def from_wire(cls, obj: Any) -> Self:
        return cls([AclInfo.from_wire(each) for each in _array(obj)])


@dataclass(slots=True)
class AuthTables(Body):
    """7101: all users with their passwords, and all policies, for a slave."""

    users: list[UserInfo] = member(list_of(body_of(UserInfo)))
    acls: list[AclInfo] = member(list_of(body_of(AclInfo)))
    users_version: DataVersion = member(body_of(DataVersion))
    acls_version: DataVersion = member(body_of(DataVersion))


def _array(obj: Any) -> list[Any]:
    if type(obj) is not list:
        raise ProtocolError("it is not an array")
    return obj
