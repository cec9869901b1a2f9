"""Commands about the users of brokers (ACL 2.0). Passwords are never printed."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from mqcommon.errors import UserError
from sdk.admin.command import command
from sdk.admin.params import Address, Text, broker_addr, cluster_name, option
from sdk.admin.render import Table
from sdk.admin.session import Session
from sdk.admin.targets import at_each, chosen_addrs, is_known

if TYPE_CHECKING:
    from remoting.protocol.requests.auth import UserInfo

FAMILY = "Users and policies"
_EITHER = ("broker_addr", "cluster_name")
_TYPES = click.Choice(["Super", "Normal"], case_sensitive=False)
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


def where(verb: str) -> tuple[click.Option, click.Option]:
    """-b and -c."""
    return broker_addr(f"{verb} which broker"), cluster_name(f"{verb} which cluster")


async def brokers(session: Session, broker_addr: str | None, cluster_name: str | None) -> list[str]:
    """The broker of -b; masters and slaves of the cluster -c, since RocketMQ's slaves copy no users."""
    return await chosen_addrs(session, broker_addr, cluster_name, slaves=True)


def _password(help: str, *, required: bool) -> click.Option:
    settings: dict[str, Any] = {"required": True} if required else {"default": None}
    return option("p", "password", help, envvar=_PASSWORD_ENV, show_envvar=True, **settings)


@command(
    "createUser",
    *where("create user to"),
    option("u", "username", "the username of user to create", required=True),
    _password("the password of user to create", required=True),
    option("t", "userType", "the userType of user to create", type=_TYPES, default="Normal", show_default=True),
    either=_EITHER,
)
async def create_user(
    session: Session, broker_addr: str | None, cluster_name: str | None, username: str, password: str, user_type: str
) -> dict[str, Any]:
    """Create a user. The password is better given in the environment: others can see command lines."""
    from remoting.protocol.requests.auth import UserInfo

    user = UserInfo(username, password, user_type)
    results = await at_each(
        session,
        await brokers(session, broker_addr, cluster_name),
        f"create user {username}",
        lambda addr: session.admin.create_user(addr, user),
        lambda addr: f"create user to {addr} success.",
    )
    return {"username": username, "results": results}


@command(
    "updateUser",
    *where("update user to"),
    option("u", "username", "the username of user to update", required=True),
    _password("the password of user to update", required=False),
    option("t", "userType", "the userType of user to update", type=_TYPES, default=None),
    option("s", "userStatus", "the userStatus of user to update", type=_STATES, default=None),
    either=_EITHER,
)
async def update_user(
    session: Session,
    broker_addr: str | None,
    cluster_name: str | None,
    username: str,
    password: str | None,
    user_type: str | None,
    user_status: str | None,
) -> dict[str, Any]:
    """Change a user. A user who is disabled is refused from the next request on."""
    from remoting.protocol.requests.auth import UserInfo

    if password is None and user_type is None and user_status is None:
        raise click.UsageError("Missing option: give -p/--password, -t/--userType or -s/--userStatus.")
    user = UserInfo(username, password, user_type, user_status)
    results = await at_each(
        session,
        await brokers(session, broker_addr, cluster_name),
        f"update user {username}",
        lambda addr: session.admin.update_user(addr, user),
        lambda addr: f"update user to {addr} success.",
    )
    return {"username": username, "results": results}


@command(
    "deleteUser",
    *where("delete user from"),
    option("u", "username", "the username of user to delete", required=True),
    either=_EITHER,
)
async def delete_user(
    session: Session, broker_addr: str | None, cluster_name: str | None, username: str
) -> dict[str, Any]:
    """Delete a user, with the policies."""
    addrs = await brokers(session, broker_addr, cluster_name)
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
    return {"username": username, "results": results}


_USERS = Table(
    (
        ("#UserName", "username"),
        ("#Password", "password"),
        ("#UserType", "userType"),
        ("#UserStatus", "userStatus"),
    ),
    "%-16s  %-22s  %-22s  %-22s",
)


def _lines(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    return _USERS.lines({**row, "password": "******"} for row in rows)


def _row(user: "UserInfo", addr: str) -> dict[str, Any]:
    return {
        "username": user.username,
        "userType": user.user_type or "",
        "userStatus": user.user_status or "",
        "brokerAddr": addr,
    }


@command(
    "getUser",
    *where("get user for"),
    option("u", "username", "the username of user to get", required=True),
    show=_lines,
    either=_EITHER,
)
async def get_user(
    session: Session, broker_addr: str | None, cluster_name: str | None, username: str
) -> list[dict[str, Any]]:
    """Show a user of a broker, or of each master of a cluster."""
    rows = []
    for addr in await chosen_addrs(session, broker_addr, cluster_name):
        user = await session.admin.get_user(addr, username)
        if user is not None:
            rows.append(_row(user, addr))
    if not rows:
        raise UserError(f"there is no user {username}; see mqadmin listUser, or create it with mqadmin createUser")
    return rows


@command(
    "listUser",
    *where("get user for"),
    option("f", "filter", "the filter to list users: a part of the name", default=None),
    show=_lines,
    either=_EITHER,
)
async def list_user(
    session: Session, broker_addr: str | None, cluster_name: str | None, filter: str | None
) -> list[dict[str, Any]]:
    """Show the users of a broker, or of each master of a cluster."""
    return [
        _row(user, addr)
        for addr in await chosen_addrs(session, broker_addr, cluster_name)
        for user in await session.admin.list_users(addr, filter)
    ]


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
async def copy_user(session: Session, from_broker: str, to_broker: str, username: list[str] | None) -> Any:
    """Copy users with their passwords, which brokers show only to a Super user. Users that exist are changed."""
    users = await session.admin.list_users(from_broker)
    if username is not None:
        users = [user for user in users if user.username in username]
        if missing := sorted(set(username) - {user.username for user in users}):
            raise UserError(f"{from_broker} has no user {', '.join(missing)}; see mqadmin listUser -b {from_broker}")
    if any(user.password is None for user in users):
        raise UserError(f"{from_broker} did not show the passwords: sign in as a Super user of this broker")
    there = {user.username for user in await session.admin.list_users(to_broker)}
    for user in users:
        if user.username in there:
            await session.admin.update_user(to_broker, user)
        else:
            await session.admin.create_user(to_broker, user)
        session.say(f"copy user of {user.username} from {from_broker} to {to_broker} success.")
    return {"copied": [user.username for user in users]}


COMMANDS = (create_user, update_user, delete_user, get_user, list_user, copy_user)
