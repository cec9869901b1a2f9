"""Commands about the users of brokers, and about what users may do (ACL 2.0). Passwords are never printed."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import Address, Text, option, where
from skylark.mqadmin.render import Table, java_value
from skylark.mqadmin.scope import Scope, at_each, chosen_addrs, is_known
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import BrokerError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.auth import AclInfo
    from skylark.sdk.admin.reports.changes import BrokerChange
    from skylark.sdk.admin.reports.users import PolicyRow, UserRow

_USER_TYPES = click.Choice(["Super", "Normal"], case_sensitive=False)
_STATES = click.Choice(["enable", "disable"], case_sensitive=False)
_PASSWORD_ENV = "MQADMIN_USER_PASSWORD"


class Names(Text):
    """Texts separated by commas."""

    name = "a,b"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        names = [part.strip() for part in super().convert(value, param, ctx).split(",") if part.strip()]
        if not names:
            self.fail("must not be empty", param, ctx)
        return names


async def brokers(session: Session, scope: Scope) -> list[str]:
    """The broker of -b; masters and slaves of the cluster -c, since RocketMQ's slaves copy no users."""
    return await chosen_addrs(session, scope, slaves=True)


def _password(help: str, *, required: bool) -> click.Option:
    kept = {"envvar": _PASSWORD_ENV, "show_envvar": True}
    if required:
        return option("p", "password", help, required=True, **kept)
    return option("p", "password", help, default=None, **kept)


@lazy_dataclass(frozen=True, slots=True)
class UserChange:
    """A user, and the result of a change at each broker."""

    username: str
    results: "Sequence[BrokerChange]"


@lazy_dataclass(frozen=True, slots=True)
class Copied:
    """The names of the users that were copied, or of the users whose policies were copied."""

    copied: Sequence[str]


@command(
    "createUser",
    *where("create user to"),
    option("u", "username", "the username of user to create", required=True),
    _password("the password of user to create", required=True),
    option("t", "userType", "the userType of user to create", type=_USER_TYPES, default="Normal", show_default=True),
)
async def create_user(session: Session, scope: Scope, username: str, password: str, user_type: str) -> UserChange:
    """Create a user. The password is better given in the environment: others can see command lines."""
    from skylark.remoting.protocol.requests.auth import UserInfo

    user = UserInfo(username, password, user_type)
    results = await at_each(
        session,
        await brokers(session, scope),
        f"create user {username}",
        lambda addr: session.admin.create_user(addr, user),
        lambda addr: f"create user to {addr} success.",
    )
    return UserChange(username, results)


@command(
    "updateUser",
    *where("update user to"),
    option("u", "username", "the username of user to update", required=True),
    _password("the password of user to update", required=False),
    option("t", "userType", "the userType of user to update", type=_USER_TYPES, default=None),
    option("s", "userStatus", "the userStatus of user to update", type=_STATES, default=None),
)
async def update_user(
    session: Session,
    scope: Scope,
    username: str,
    password: str | None,
    user_type: str | None,
    user_status: str | None,
) -> UserChange:
    """Change a user. A user who is disabled is refused from the next request on."""
    from skylark.remoting.protocol.requests.auth import UserInfo

    if password is None and user_type is None and user_status is None:
        raise click.UsageError("Missing option: give -p/--password, -t/--userType or -s/--userStatus.")
    user = UserInfo(username, password, user_type, user_status)
    results = await at_each(
        session,
        await brokers(session, scope),
        f"update user {username}",
        lambda addr: session.admin.update_user(addr, user),
        lambda addr: f"update user to {addr} success.",
    )
    return UserChange(username, results)


@command(
    "deleteUser",
    *where("delete user from"),
    option("u", "username", "the username of user to delete", required=True),
)
async def delete_user(session: Session, scope: Scope, username: str) -> UserChange:
    """Delete a user and the user's policies."""
    addrs = await brokers(session, scope)
    was_known = await is_known(addrs, lambda addr: session.admin.get_user(addr, username))
    results = await at_each(
        session,
        addrs,
        f"delete user {username}",
        lambda addr: session.admin.delete_user(addr, username),
        (lambda addr: f"delete user to {addr} success.") if was_known else None,
    )
    if not was_known:
        session.fail(UserError(f"there is no user {username}: check the name with mqadmin listUser"))
    return UserChange(username, results)


_USERS = Table(
    (
        ("#UserName", "username"),
        ("#Password", lambda row: "******"),
        ("#UserType", "kind"),
        ("#UserStatus", "status"),
    ),
    "%-16s  %-22s  %-22s  %-22s",
)


def _user_lines(rows: "Sequence[UserRow]") -> Iterator[str]:
    yield from _USERS.lines(rows)


@command(
    "getUser",
    *where("get user for"),
    option("u", "username", "the username of user to get", required=True),
    show=_user_lines,
)
async def get_user(session: Session, scope: Scope, username: str) -> "list[UserRow]":
    """Show a user of a broker, or of each master of a cluster."""
    from skylark.sdk.admin.reports.users import user_at

    return await user_at(session.admin, await chosen_addrs(session, scope), username)


@command(
    "listUser",
    *where("get user for"),
    option("f", "filter", "the filter to list users: a part of the name", default=None),
    show=_user_lines,
)
async def list_user(session: Session, scope: Scope, filter: str | None) -> "list[UserRow]":
    """Show the users of a broker, or of each master of a cluster."""
    from skylark.sdk.admin.reports.users import users_at

    return await users_at(session.admin, await chosen_addrs(session, scope), filter)


@command(
    "copyUser",
    option(
        "f",
        "fromBroker",
        "the source broker that the users copy from",
        type=Address(),
        metavar="HOST:PORT",
        required=True,
    ),
    option(
        "t", "toBroker", "the target broker that the users copy to", type=Address(), metavar="HOST:PORT", required=True
    ),
    option("u", "username", "the usernames to copy, separated by commas; default: all", type=Names(), default=None),
)
async def copy_user(session: Session, from_broker: str, to_broker: str, username: list[str] | None) -> Copied:
    """Copy users with their passwords, which brokers show only to a Super user. Users that exist are changed."""
    users = await session.admin.list_users(from_broker)
    if username is not None:
        users = [user for user in users if user.username in username]
        if missing := sorted(set(username) - {user.username for user in users}):
            raise UserError(f"{from_broker} has no user {', '.join(missing)}; see mqadmin listUser -b {from_broker}")
    if any(user.password is None for user in users):
        raise UserError(f"{from_broker} did not show the passwords: sign in as a Super user of this broker")
    # Brokers have one request to create a user and one to change a user; each refuses the other's case.
    there = {user.username for user in await session.admin.list_users(to_broker)}
    for user in users:
        if user.username in there:
            await session.admin.update_user(to_broker, user)
        else:
            await session.admin.create_user(to_broker, user)
        session.say(f"copy user of {user.username} from {from_broker} to {to_broker} success.")
    return Copied([user.username for user in users])


_DECISIONS = click.Choice(["Allow", "Deny"], case_sensitive=False)
_POLICY_TYPES = click.Choice(["Custom", "Default"], case_sensitive=False)


def _subject(verb: str, **settings: Any) -> click.Option:
    return option("s", "subject", f"the subject of acl to {verb}, as User:name", **settings)


def _entry(verb: str) -> tuple[click.Option, ...]:
    return (
        _subject(verb, required=True),
        option(
            "r",
            "resources",
            f"the resources of acl to {verb}, as Topic:a,Topic:b*,Group:*,Cluster:c,Namespace:n,*",
            type=Names(),
            required=True,
        ),
        option(
            "a",
            "actions",
            f"the actions of acl to {verb}: All,Pub,Sub,Create,Update,Delete,Get,List",
            type=Names(),
            required=True,
        ),
        option("d", "decision", f"the decision of acl to {verb}", type=_DECISIONS, required=True),
        option("i", "sourceIp", f"the sourceIps of acl to {verb}, as 10.1.2.3,10.2.0.0/16", type=Names(), default=None),
        option(
            "t",
            "policyType",
            f"the policyType of acl to {verb}",
            type=_POLICY_TYPES,
            default="Custom",
            show_default=True,
        ),
    )


@lazy_dataclass(frozen=True, slots=True)
class AclChange:
    """Policies of a user, and the result of the change at each broker."""

    acl: "AclInfo"
    results: "Sequence[BrokerChange]"


def _acl(
    subject: str,
    policy_type: str,
    resources: Sequence[str],
    actions: list[str],
    source_ips: list[str] | None,
    decision: str,
) -> "AclInfo":
    from skylark.remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo, PolicyInfo

    entries = [PolicyEntryInfo(resource, actions, source_ips, decision) for resource in resources]
    return AclInfo(subject, [PolicyInfo(policy_type, entries)])


async def _put(session: Session, scope: Scope, verb: str, acl: "AclInfo") -> AclChange:
    put = session.admin.create_acl if verb == "create" else session.admin.update_acl
    results = await at_each(
        session,
        await brokers(session, scope),
        f"{verb} acl of {acl.subject}",
        lambda addr: put(addr, acl),
        lambda addr: f"{verb} acl to {addr} success.",
    )
    return AclChange(acl, results)


@command("createAcl", *where("create acl to"), *_entry("create"))
async def create_acl(
    session: Session,
    scope: Scope,
    subject: str,
    resources: list[str],
    actions: list[str],
    decision: str,
    source_ip: list[str] | None,
    policy_type: str,
) -> AclChange:
    """Allow or deny a user actions on resources. Entries about the same resources are replaced."""
    acl = _acl(subject, policy_type, resources, actions, source_ip, decision)
    return await _put(session, scope, "create", acl)


@command("updateAcl", *where("update acl to"), *_entry("update"))
async def update_acl(
    session: Session,
    scope: Scope,
    subject: str,
    resources: list[str],
    actions: list[str],
    decision: str,
    source_ip: list[str] | None,
    policy_type: str,
) -> AclChange:
    """Change what a user may do with resources; entries about other resources stay."""
    acl = _acl(subject, policy_type, resources, actions, source_ip, decision)
    return await _put(session, scope, "update", acl)


@lazy_dataclass(frozen=True, slots=True)
class AclDeletion:
    """A user, the resource whose policies were deleted (None: all policies), and the result at each broker."""

    subject: str
    resource: str | None
    results: "Sequence[BrokerChange]"


@command(
    "deleteAcl",
    *where("delete acl from"),
    _subject("delete", required=True),
    option("r", "resources", "the resource of acl to delete; default: all policies of the subject", default=None),
    option("t", "policyType", "the policyType of acl to delete", type=_POLICY_TYPES, default=None),
)
async def delete_acl(
    session: Session,
    scope: Scope,
    subject: str,
    resources: str | None,
    policy_type: str | None,
) -> AclDeletion:
    """Delete the policies of a user, or only the policies about one resource."""
    if policy_type is not None and resources is None:
        raise click.UsageError("-t/--policyType needs -r/--resources: without it all policies are deleted.")
    idle: list[str] = []

    async def delete(addr: str) -> None:
        before = await _seen(session, addr, subject)
        await session.admin.delete_acl(addr, subject, resources, policy_type)
        # Brokers, as RocketMQ's, accept a request to delete policies that do not exist.
        if before is not None and before == await _seen(session, addr, subject):
            idle.append(addr)

    results = await at_each(
        session,
        await brokers(session, scope),
        f"delete acl of {subject}",
        delete,
        lambda addr: f"{addr} has no such acl." if addr in idle else f"delete acl to {addr} success.",
    )
    # Brokers that had the policies have deleted them. When no broker had any, the name is probably wrong.
    if len(idle) == len(results):
        session.fail(UserError(f"{subject} has no policy about {resources}: see mqadmin getAcl -s {subject}"))
    return AclDeletion(subject, resources, results)


async def _seen(session: Session, addr: str, subject: str) -> "AclInfo | None":
    """The policies of ``subject``; None when there are none, or this caller may not see them."""
    try:
        return await session.admin.get_acl(addr, subject)
    except BrokerError:
        return None


_ACLS = Table(
    (
        ("#Subject", "subject"),
        ("#PolicyType", "policy_type"),
        ("#Resource", "resource"),
        ("#Actions", lambda row: java_value(row.actions)),
        ("#SourceIp", lambda row: java_value(row.source_ips)),
        ("#Decision", "decision"),
    ),
    "%-16s  %-10s  %-22s  %-20s  %-24s  %-10s",
)


def _policy_lines(rows: "Sequence[PolicyRow]") -> Iterator[str]:
    yield from _ACLS.lines(rows)


@command("getAcl", *where("get acl for"), _subject("get", required=True), show=_policy_lines)
async def get_acl(session: Session, scope: Scope, subject: str) -> "list[PolicyRow]":
    """Show what a user may do on a broker, or on each master of a cluster."""
    from skylark.sdk.admin.reports.users import policies_of

    return await policies_of(session.admin, await chosen_addrs(session, scope), subject)


@command(
    "listAcl",
    *where("get acl for"),
    option("s", "subject", "the subject of acl to filter: a part of it", default=None),
    option("r", "resource", "the resource of acl to filter: a part of it", default=None),
    show=_policy_lines,
)
async def list_acl(session: Session, scope: Scope, subject: str | None, resource: str | None) -> "list[PolicyRow]":
    """Show what all users may do on a broker, or on each master of a cluster."""
    from skylark.sdk.admin.reports.users import policies_at

    return await policies_at(session.admin, await chosen_addrs(session, scope), subject, resource)


@command(
    "copyAcl",
    option(
        "f",
        "fromBroker",
        "the source broker that the acls copy from",
        type=Address(),
        metavar="HOST:PORT",
        required=True,
    ),
    option(
        "t", "toBroker", "the target broker that the acls copy to", type=Address(), metavar="HOST:PORT", required=True
    ),
    option("s", "subjects", "the subjects to copy, separated by commas; default: all", type=Names(), default=None),
)
async def copy_acl(session: Session, from_broker: str, to_broker: str, subjects: list[str] | None) -> Copied:
    """Copy policies. Their users must exist at the target: see copyUser."""
    acls = await session.admin.list_acls(from_broker)
    if subjects is not None:
        acls = [acl for acl in acls if acl.subject in subjects]
        if missing := sorted(set(subjects) - {acl.subject for acl in acls}):
            raise UserError(f"{from_broker} has no policies of {', '.join(missing)}; see mqadmin listAcl")
    for acl in acls:
        await session.admin.update_acl(to_broker, acl)
        session.say(f"copy acl of {acl.subject} from {from_broker} to {to_broker} success.")
    return Copied([acl.subject for acl in acls])


FAMILIES = {
    "Users and policies": (
        create_user,
        update_user,
        delete_user,
        get_user,
        list_user,
        copy_user,
        create_acl,
        update_acl,
        delete_acl,
        get_acl,
        list_acl,
        copy_acl,
    ),
}
