"""Users and policies of a broker: 3001 to 3010. RocketMQ declares no field as required; the handlers check them."""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional
from remoting.protocol.scalars import read_text


@dataclass(slots=True)
class UserRequestHeader(Header):
    """3001 to 3004: about one user. In 3001 and 3002 this name counts, not that of the body."""

    username: str = optional(read_text, "")


@dataclass(slots=True)
class ListUsersRequestHeader(Header):
    """3005: users whose name contains the filter, or all."""

    filter: str | None = optional(read_text)


@dataclass(slots=True)
class AclRequestHeader(Header):
    """3006, 3007, 3009: about the policies of one subject."""

    subject: str = optional(read_text, "")


@dataclass(slots=True)
class DeleteAclRequestHeader(Header):
    """3008: without a resource all policies of the subject are deleted; without a policy type Custom is meant."""

    subject: str = optional(read_text, "")
    policy_type: str | None = optional(read_text)
    resource: str | None = optional(read_text)


@dataclass(slots=True)
class ListAclsRequestHeader(Header):
    """3010: subjects whose name contains the filter; of these the entries whose resource contains the other."""

    subject_filter: str | None = optional(read_text)
    resource_filter: str | None = optional(read_text)
