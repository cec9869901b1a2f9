"""Users and policies of a broker: RocketMQ's ACL 2.0 (3001 to 3010), and both tables for slaves, which is our own."""

from dataclasses import field
from typing import Any, Self

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import TEXT, Body, DataVersion, body_of, list_of, member
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.header import Header, optional
from skylark.remoting.protocol.request import NOTHING, Request, SlaveAnswer
from skylark.remoting.protocol.rights import GET_CLUSTER, UPDATE_CLUSTER
from skylark.remoting.protocol.scalars import read_text


@lazy_dataclass(slots=True)
class UserRequestHeader(Header):
    """3001 to 3004: about one user. In 3001 and 3002 this name counts, not the name in the body."""

    username: str = optional(read_text, "")


@lazy_dataclass(slots=True)
class ListUsersRequestHeader(Header):
    """3005: users whose name contains the filter, or all."""

    filter: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class AclRequestHeader(Header):
    """3006, 3007, 3009: about the policies of one subject."""

    subject: str = optional(read_text, "")


@lazy_dataclass(slots=True)
class DeleteAclRequestHeader(Header):
    """3008: without a resource all policies of the subject are deleted; without a policy type Custom is meant."""

    subject: str = optional(read_text, "")
    policy_type: str | None = optional(read_text)
    resource: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class ListAclsRequestHeader(Header):
    """3010: subjects whose name contains the filter; their entries whose resource contains the other filter."""

    subject_filter: str | None = optional(read_text)
    resource_filter: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class UserInfo(Body):
    """A user. The password is in no repr, so that it gets into no log."""

    username: str = member(TEXT, "")
    password: str | None = field(default=None, repr=False, metadata={"kind": TEXT, "wire": None})
    #: Super or Normal.
    user_type: str | None = member(TEXT, None)
    #: enable or disable.
    user_status: str | None = member(TEXT, None)


@lazy_dataclass(slots=True)
class PolicyEntryInfo(Body):
    """Whether some actions on a resource are allowed. Without addresses it holds for all clients."""

    resource: str = member(TEXT, "")
    actions: list[str] = member(list_of(TEXT))
    source_ips: list[str] | None = member(list_of(TEXT), None)
    #: Allow or Deny.
    decision: str = member(TEXT, "")


@lazy_dataclass(slots=True)
class PolicyInfo(Body):
    """Entries of one type: Custom or Default."""

    policy_type: str | None = member(TEXT, None)
    entries: list[PolicyEntryInfo] = member(list_of(body_of(PolicyEntryInfo)))


@lazy_dataclass(slots=True)
class AclInfo(Body):
    """The policies of a subject, which is a user: ``User:name``."""

    subject: str = member(TEXT, "")
    policies: list[PolicyInfo] = member(list_of(body_of(PolicyInfo)))


@lazy_dataclass(slots=True)
class UserInfos(Body):
    """Users, as a JSON array (3005)."""

    users: list[UserInfo] = member(list_of(body_of(UserInfo)))

    def to_wire(self) -> Any:
        return [user.to_wire() for user in self.users]

    @classmethod
    def from_wire(cls, obj: Any) -> Self:
        return cls([UserInfo.from_wire(each) for each in _array(obj)])


@lazy_dataclass(slots=True)
class AclInfos(Body):
    """The policies of several subjects, as a JSON array (3010)."""

    acls: list[AclInfo] = member(list_of(body_of(AclInfo)))

    def to_wire(self) -> Any:
        return [acl.to_wire() for acl in self.acls]

    @classmethod
    def from_wire(cls, obj: Any) -> Self:
        return cls([AclInfo.from_wire(each) for each in _array(obj)])


@lazy_dataclass(slots=True)
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


#: Users and policies are copied from the master. RocketMQ's mqadmin sends changes of them to masters and slaves, and
#: stops at the first refusal, so a slave answers as if it had changed them.
_LEFT_TO_MASTER = SlaveAnswer(
    ResponseCode.SUCCESS, "nothing changed here: this broker is a slave, and copies its master's users"
)


AUTH_CREATE_USER = Request(
    3001,
    UserRequestHeader,
    UserInfo,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
    on_slave=_LEFT_TO_MASTER,
)
AUTH_UPDATE_USER = Request(
    3002,
    UserRequestHeader,
    UserInfo,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
    on_slave=_LEFT_TO_MASTER,
)
AUTH_DELETE_USER = Request(
    3003,
    UserRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
    on_slave=_LEFT_TO_MASTER,
)
# The answer has no body when there is no such user; other requests that read do the same.
AUTH_GET_USER = Request(3004, UserRequestHeader, NOTHING, NOTHING, UserInfo, right=GET_CLUSTER)
AUTH_LIST_USER = Request(
    3005,
    ListUsersRequestHeader,
    NOTHING,
    NOTHING,
    UserInfos,
    right=GET_CLUSTER,
)
AUTH_CREATE_ACL = Request(
    3006,
    AclRequestHeader,
    AclInfo,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
    on_slave=_LEFT_TO_MASTER,
)
AUTH_UPDATE_ACL = Request(
    3007,
    AclRequestHeader,
    AclInfo,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
    on_slave=_LEFT_TO_MASTER,
)
AUTH_DELETE_ACL = Request(
    3008,
    DeleteAclRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
    on_slave=_LEFT_TO_MASTER,
)
AUTH_GET_ACL = Request(3009, AclRequestHeader, NOTHING, NOTHING, AclInfo, right=GET_CLUSTER)
AUTH_LIST_ACL = Request(3010, ListAclsRequestHeader, NOTHING, NOTHING, AclInfos, right=GET_CLUSTER)
GET_AUTH_TABLES = Request(7101, NOTHING, NOTHING, NOTHING, AuthTables, right=GET_CLUSTER)
