"""Commands about accounts in files of brokers (ACL 1.0), and why a client is refused. Secrets are never printed."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.commands.users import Names, brokers
from skylark.mqadmin.params import option, where
from skylark.mqadmin.render import Table, java_value, seconds_text
from skylark.mqadmin.scope import Scope, at_each, chosen_addrs
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.reports.report import plain

if TYPE_CHECKING:
    from skylark.sdk.admin.reports.accounts import AccessAnswer, AccountFile, BrokerAccounts
    from skylark.sdk.admin.reports.changes import BrokerChange

_SECRET_ENV = "MQADMIN_SECRET_KEY"
_PERMISSIONS = click.Choice(["DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB"])


class Permissions(Names):
    """Texts like ``topicA=PUB|SUB``, separated by commas."""

    name = "a=DENY,b=SUB"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        names = super().convert(value, param, ctx)
        for text in names:
            if not text.partition("=")[2]:
                self.fail(f"{text!r} is no permission, as in topicA=PUB|SUB", param, ctx)
        return names


class RequestKind(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """The code of a request, by its number or its name."""

    name = "code"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from skylark.sdk.admin.reports.accounts import request_code

        try:
            return request_code(str(value))
        except UserError as error:
            self.fail(str(error), param, ctx)


@lazy_dataclass(frozen=True, slots=True)
class AccountChange:
    """An account, and the result of a change at each broker."""

    access_key: str
    results: "Sequence[BrokerChange]"


@lazy_dataclass(frozen=True, slots=True)
class WhiteListChange:
    """The addresses of clients that need no account, and the result of the change at each broker."""

    global_white_remote_addresses: str
    results: "Sequence[BrokerChange]"


@command(
    "updateAclConfig",
    *where("update acl config file to"),
    option("a", "accessKey", "set accessKey in acl config file", required=True),
    option(
        "s",
        "secretKey",
        "set secretKey in acl config file; a new account needs one",
        envvar=_SECRET_ENV,
        show_envvar=True,
        default=None,
    ),
    option("w", "whiteRemoteAddress", "set white ip Address for account in acl config file", default=None),
    option("i", "defaultTopicPerm", "set default topicPerm in acl config file", type=_PERMISSIONS, default=None),
    option("u", "defaultGroupPerm", "set default GroupPerm in acl config file", type=_PERMISSIONS, default=None),
    option("t", "topicPerms", "set topicPerms list, eg: topicA=DENY,topicD=SUB", type=Permissions(), default=None),
    option("g", "groupPerms", "set groupPerms list, eg: groupD=DENY,groupD=SUB", type=Permissions(), default=None),
    option("m", "admin", "set admin flag in acl config file", type=bool, default=None),
)
async def update_acl_config(
    session: Session,
    scope: Scope,
    access_key: str,
    secret_key: str | None,
    white_remote_address: str | None,
    default_topic_perm: str | None,
    default_group_perm: str | None,
    topic_perms: list[str] | None,
    group_perms: list[str] | None,
    admin: bool | None,
) -> AccountChange:
    """Create or change an account. Give the secret in the environment: other users can see command lines."""
    from skylark.remoting.protocol.requests.acl import PlainAccessConfig

    account = PlainAccessConfig(
        access_key,
        secret_key,
        white_remote_address,
        admin,
        default_topic_perm,
        default_group_perm,
        topic_perms,
        group_perms,
    )
    results = await at_each(
        session,
        await brokers(session, scope),
        f"update account {access_key}",
        lambda addr: session.admin.update_account(addr, account),
        lambda addr: f"create or update plain access config to {addr} success.",
    )
    return AccountChange(access_key, results)


@command(
    "deleteAclConfig",
    *where("delete acl config account from"),
    option("a", "accessKey", "set accessKey in acl config file for deleting which account", required=True),
)
async def delete_acl_config(session: Session, scope: Scope, access_key: str) -> AccountChange:
    """Delete an account. RocketMQ calls this command deleteAccessConfig, too."""
    results = await at_each(
        session,
        await brokers(session, scope),
        f"delete account {access_key}",
        lambda addr: session.admin.delete_account(addr, access_key),
        lambda addr: f"delete plain access config account from {addr} success.",
    )
    return AccountChange(access_key, results)


@command(
    "updateGlobalWhiteAddr",
    *where("update global white address to"),
    option(
        "g",
        "globalWhiteRemoteAddresses",
        "set globalWhiteRemoteAddress list, eg: 10.10.103.*,192.168.0.{1,2}",
        type=click.STRING,
        required=True,
    ),
    option("p", "aclFileFullPath", "the file of the broker; default: its plain_acl.yml", default=None),
)
async def update_global_white_addr(
    session: Session,
    scope: Scope,
    global_white_remote_addresses: str,
    acl_file_full_path: str | None,
) -> WhiteListChange:
    """Replace the addresses of clients that need no account; an empty text removes all addresses."""
    results = await at_each(
        session,
        await brokers(session, scope),
        "update the global white list",
        lambda addr: session.admin.update_white_list(addr, [global_white_remote_addresses], acl_file_full_path),
        lambda addr: f"update global white remote addresses to {addr} success.",
    )
    return WhiteListChange(global_white_remote_addresses, results)


_VERSIONS = Table(
    (
        ("#Cluster Name", "cluster_name"),
        ("#Broker Name", "broker_name"),
        ("#Broker Addr", "broker_addr"),
        ("#AclFilePath", "file"),
        ("#AclConfigVersionNum", "counter"),
        ("#AclLastUpdateTime", lambda row: seconds_text(row.changed_ms)),
    ),
    "%-16s  %-22s  %-22s  %-40s  %-20s  %-22s",
)


@command("clusterAclConfigVersion", *where("query acl config version for"), show=_VERSIONS.lines)
async def cluster_acl_config_version(session: Session, scope: Scope) -> "list[AccountFile]":
    """Show the versions of the files of accounts at a broker, or at each master of a cluster."""
    from skylark.sdk.admin.reports.accounts import account_files

    return await account_files(session.admin, await chosen_addrs(session, scope))


def _config_lines(rows: "Sequence[BrokerAccounts]") -> Iterator[str]:
    for row in rows:
        yield ""
        yield f"{'globalWhiteRemoteAddresses':20}: {java_value(row.global_white_addrs)}"
        yield ""
        yield "accounts:"
        for account in row.accounts:
            for key, value in plain(account).items():
                yield f"  {key:18}: {java_value(value)}"
            yield ""


@command("getAclConfig", *where("query acl config for"), show=_config_lines)
async def get_acl_config(session: Session, scope: Scope) -> "list[BrokerAccounts]":
    """Show the accounts of a broker, or of each master of a cluster, without their secrets."""
    from skylark.sdk.admin.reports.accounts import accounts_at

    return await accounts_at(session.admin, await chosen_addrs(session, scope))


def _explained_lines(rows: "Sequence[AccessAnswer]") -> Iterator[str]:
    for row in rows:
        found = row.explanation
        yield f"{row.broker_addr}: {'allowed' if found.allowed else 'REFUSED'}: {found.text}"
        for step in found.steps:
            yield f"  {step.step:32}  {step.outcome:4}  {step.rule}"


@command(
    "explainAcl",
    *where("ask"),
    option("a", "accessKey", "the account, or the user, that signs", required=True),
    option("r", "remoteAddress", "the address of the client, as 10.1.2.3", required=True),
    option("t", "topic", "the topic that the request is about", default=None),
    option("g", "group", "the group that the request is about", default=None),
    option(
        "q",
        "request",
        "the request, by its code or its name; default: SEND_MESSAGE_V2, with a group PULL_MESSAGE",
        type=RequestKind(),
        default=None,
    ),
    show=_explained_lines,
)
async def explain_acl(
    session: Session,
    scope: Scope,
    access_key: str,
    remote_address: str,
    topic: str | None,
    group: str | None,
    request: int | None,
) -> "list[AccessAnswer]":
    """Say whether a client may send a request, and which rule decides, by the rules that are in force."""
    from skylark.sdk.admin.reports.accounts import explain_access

    if topic is None and group is None and request is None:
        raise UserError("give a topic (-t), a group (-g), or a request (-q)")
    addrs = await chosen_addrs(session, scope)
    return await explain_access(
        session.admin, addrs, access_key, remote_address, topic=topic, group=group, request=request
    )


FAMILIES = {
    "Accounts in files": (
        update_acl_config,
        delete_acl_config,
        update_global_white_addr,
        cluster_acl_config_version,
        get_acl_config,
        explain_acl,
    ),
}
