"""The users of brokers, and what users may do (ACL 2.0). Reports have no passwords."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.requests.auth import AclInfo, UserInfo
from skylark.sdk.admin.client import Admin
from skylark.sdk.admin.reports.report import named


@lazy_dataclass(frozen=True, slots=True)
class UserRow:
    """A user of a broker. ``kind`` is Super or Normal, ``status`` enable or disable; both are empty if not known."""

    username: str
    kind: str = field(metadata=named("userType"))
    status: str = field(metadata=named("userStatus"))
    broker_addr: str


@lazy_dataclass(frozen=True, slots=True)
class PolicyRow:
    """What a user may do, or may not do, with a resource of a broker.

    ``source_ips``: the addresses that the policy is for; None stands for all addresses. ``decision`` is Allow or Deny.
    """

    subject: str
    policy_type: str | None
    resource: str
    actions: Sequence[str]
    source_ips: Sequence[str] | None
    decision: str
    broker_addr: str


async def users_at(admin: Admin, addrs: Iterable[str], part: str | None = None) -> list[UserRow]:
    """The users of the brokers at ``addrs`` whose names contain ``part``."""
    return [_user_row(user, addr) for addr in addrs for user in await admin.list_users(addr, part)]


async def user_at(admin: Admin, addrs: Iterable[str], username: str) -> list[UserRow]:
    """One user at each of the brokers; UserError when no broker knows the user."""
    found = [(await admin.get_user(addr, username), addr) for addr in addrs]
    rows = [_user_row(user, addr) for user, addr in found if user is not None]
    if not rows:
        raise UserError(f"there is no user {username}; see mqadmin listUser, or create it with mqadmin createUser")
    return rows


async def policies_at(
    admin: Admin, addrs: Iterable[str], subject_part: str | None = None, resource_part: str | None = None
) -> list[PolicyRow]:
    """The policies of users whose names contain one text, about resources that contain another text."""
    return [
        row
        for addr in addrs
        for acl in await admin.list_acls(addr, subject_part, resource_part)
        for row in _policy_rows(acl, addr)
    ]


async def policies_of(admin: Admin, addrs: Iterable[str], subject: str) -> list[PolicyRow]:
    """The policies of one user, as ``User:name``; UserError when the user has none."""
    found = [(await admin.get_acl(addr, subject), addr) for addr in addrs]
    rows = [row for acl, addr in found if acl is not None for row in _policy_rows(acl, addr)]
    if not rows:
        raise UserError(f"{subject} has no policies; see mqadmin listAcl, or create some with mqadmin createAcl")
    return rows


def _user_row(user: UserInfo, addr: str) -> UserRow:
    return UserRow(user.username, user.user_type or "", user.user_status or "", addr)


def _policy_rows(acl: AclInfo, addr: str) -> Iterator[PolicyRow]:
    for policy in acl.policies:
        for entry in policy.entries:
            place = (acl.subject, policy.policy_type, entry.resource)
            yield PolicyRow(*place, entry.actions, entry.source_ips, entry.decision, addr)
