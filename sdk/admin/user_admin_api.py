"""Requests of administrators about users and policies, one function each."""

from remoting.net.call import call
from remoting.protocol.requests import auth
from remoting.protocol.requests.auth import (
    AclInfo,
    AclRequestHeader,
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UserInfo,
    UserRequestHeader,
)
from sdk.endpoint import Endpoint


async def create_user(broker: Endpoint, user: UserInfo) -> None:
    """Create the user; code 16 when there is one of that name."""
    await call(broker, auth.AUTH_CREATE_USER, UserRequestHeader(user.username), user)


async def update_user(broker: Endpoint, user: UserInfo) -> None:
    """Change what ``user`` says; what is None stays."""
    await call(broker, auth.AUTH_UPDATE_USER, UserRequestHeader(user.username), user)


async def delete_user(broker: Endpoint, username: str) -> None:
    """Delete the user and the policies."""
    await call(broker, auth.AUTH_DELETE_USER, UserRequestHeader(username))


async def get_user(broker: Endpoint, username: str) -> UserInfo | None:
    """The user; None when there is none."""
    answer = await call(broker, auth.AUTH_GET_USER, UserRequestHeader(username))
    return answer.body() if answer.command.body else None


async def list_users(broker: Endpoint, part: str | None) -> list[UserInfo]:
    """The users whose name contains ``part``, or all."""
    answer = await call(broker, auth.AUTH_LIST_USER, ListUsersRequestHeader(part))
    return answer.body().users if answer.command.body else []


async def create_acl(broker: Endpoint, acl: AclInfo) -> None:
    """Add policies of a subject."""
    await call(broker, auth.AUTH_CREATE_ACL, AclRequestHeader(acl.subject), acl)


async def update_acl(broker: Endpoint, acl: AclInfo) -> None:
    """Add policies of a subject; they replace those about the same resources."""
    await call(broker, auth.AUTH_UPDATE_ACL, AclRequestHeader(acl.subject), acl)


async def delete_acl(broker: Endpoint, subject: str, policy_type: str | None, resource: str | None) -> None:
    """Delete the policies of a subject, or those about one resource."""
    await call(broker, auth.AUTH_DELETE_ACL, DeleteAclRequestHeader(subject, policy_type, resource))


async def get_acl(broker: Endpoint, subject: str) -> AclInfo | None:
    """The policies of a subject; None when it has none."""
    answer = await call(broker, auth.AUTH_GET_ACL, AclRequestHeader(subject))
    return answer.body() if answer.command.body else None


async def list_acls(broker: Endpoint, subject_part: str | None, resource_part: str | None) -> list[AclInfo]:
    """The policies of all subjects whose name contains the one text, about resources that contain the other."""
    answer = await call(broker, auth.AUTH_LIST_ACL, ListAclsRequestHeader(subject_part, resource_part))
    return answer.body().acls if answer.command.body else []
