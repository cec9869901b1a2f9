"""Commands about accounts in files of brokers (ACL 1.0), and why a client is refused. Secrets are never printed."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.commands.users import Names, brokers
from skylark.mqadmin.params import option, where
from skylark.mqadmin.render import Table, java_value, seconds_text
from skylark.mqadmin.scope import Scope, at_each, chosen_addrs
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import UserError

_SECRET_ENV = "MQADMIN_SECRET_KEY"
_PERMISSIONS = click.Choice(["DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB"])
_DEFAULT_CODES = {"topic": "SEND_MESSAGE_V2", "group": "PULL_MESSAGE"}


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
        from skylark.remoting.protocol.requests.table import BY_NAME

        text = str(value).strip()
        named = BY_NAME.get(text.upper())
        if text.isascii() and text.isdigit():
            return int(text)
        if named is None:
            self.fail(f"{value!r} is no request: give its code, or a name as SEND_MESSAGE_V2", param, ctx)
        return named.code


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
async def update_acl_config(session: Session, scope: Scope, access_key: str, **given: Any) -> dict[str, Any]:
    """Create an account, or change what is given. The secret is better in the environment: others see command lines."""
    from skylark.remoting.protocol.requests.acl import PlainAccessConfig

    account = PlainAccessConfig(
        access_key,
        given["secret_key"],
        given["white_remote_address"],
        given["admin"],
        given["default_topic_perm"],
        given["default_group_perm"],
        given["topic_perms"],
        given["group_perms"],
    )
    results = await at_each(
        session,
        await brokers(session, scope),
        f"update account {access_key}",
        lambda addr: session.admin.update_account(addr, account),
        lambda addr: f"create or update plain access config to {addr} success.",
    )
    return {"accessKey": access_key, "results": results}


@command(
    "deleteAclConfig",
    *where("delete acl config account from"),
    option("a", "accessKey", "set accessKey in acl config file for deleting which account", required=True),
)
async def delete_acl_config(session: Session, scope: Scope, access_key: str) -> dict[str, Any]:
    """Delete an account. RocketMQ calls this command deleteAccessConfig, too."""
    results = await at_each(
        session,
        await brokers(session, scope),
        f"delete account {access_key}",
        lambda addr: session.admin.delete_account(addr, access_key),
        lambda addr: f"delete plain access config account from {addr} success.",
    )
    return {"accessKey": access_key, "results": results}


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
) -> dict[str, Any]:
    """Replace the addresses of clients that are not asked who they are; an empty text: there are none."""
    results = await at_each(
        session,
        await brokers(session, scope),
        "update the global white list",
        lambda addr: session.admin.update_white_list(addr, [global_white_remote_addresses], acl_file_full_path),
        lambda addr: f"update global white remote addresses to {addr} success.",
    )
    return {"globalWhiteRemoteAddresses": global_white_remote_addresses, "results": results}


_VERSIONS = Table(
    (
        ("#Cluster Name", "clusterName"),
        ("#Broker Name", "brokerName"),
        ("#Broker Addr", "brokerAddr"),
        ("#AclFilePath", "file"),
        ("#AclConfigVersionNum", "counter"),
        ("#AclLastUpdateTime", "updated"),
    ),
    "%-16s  %-22s  %-22s  %-40s  %-20s  %-22s",
)


def _version_lines(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    return _VERSIONS.lines({**row, "updated": seconds_text(row["timestamp"])} for row in rows)


@command("clusterAclConfigVersion", *where("query acl config version for"), show=_version_lines)
async def cluster_acl_config_version(session: Session, scope: Scope) -> list[dict[str, Any]]:
    """Show the versions of the files of accounts at a broker, or at each master of a cluster."""
    rows = []
    for addr in await chosen_addrs(session, scope):
        found = await session.admin.account_versions(addr)
        # Brokers before RocketMQ 4.9.1 have one file.
        files = json.loads(found.all_acl_file_version or "{}") or {"": json.loads(found.version)}
        rows += [
            {
                "clusterName": found.cluster_name,
                "brokerName": found.broker_name,
                "brokerAddr": found.broker_addr,
                "file": file,
                "counter": version.get("counter", 0),
                "timestamp": version.get("timestamp", 0),
            }
            for file, version in sorted(files.items())
        ]
    return rows


def _config_lines(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    for row in rows:
        yield ""
        yield f"{'globalWhiteRemoteAddresses':20}: {java_value(row['globalWhiteAddrs'])}"
        yield ""
        yield "accounts:"
        for account in row["accounts"]:
            for key, value in account.items():
                yield f"  {key:18}: {'' if value is None else java_value(value)}"
            yield ""


@command("getAclConfig", *where("query acl config for"), show=_config_lines)
async def get_acl_config(session: Session, scope: Scope) -> list[dict[str, Any]]:
    """Show the accounts of a broker, or of each master of a cluster, without their secrets."""
    rows = []
    for addr in await chosen_addrs(session, scope):
        config = await session.admin.accounts(addr)
        accounts = [account.to_wire() for account in config.plain_access_configs]
        for account in accounts:
            account.pop("secretKey", None)
        rows.append({"brokerAddr": addr, "globalWhiteAddrs": config.global_white_addrs, "accounts": accounts})
    return rows


def _explained_lines(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    for row in rows:
        yield f"{row['brokerAddr']}: {'allowed' if row['allowed'] else 'REFUSED'}: {row['text']}"
        for step in row["steps"]:
            yield f"  {step['step']:32}  {step['outcome']:4}  {step['rule']}"


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
) -> list[dict[str, Any]]:
    """Say whether a client may send a request, and which rule decides, by the rules that are in force."""
    if request is None:
        if topic is None and group is None:
            raise UserError("give a topic (-t), a group (-g), or a request (-q)")
        request = RequestKind().convert(_DEFAULT_CODES["topic" if group is None else "group"], None, None)
    rows = []
    for addr in await chosen_addrs(session, scope):
        found = await session.admin.explain_access(
            addr, access_key, remote_address, request, topic=topic or "", group=group or ""
        )
        rows.append({"brokerAddr": addr, **found.to_wire()})
    return rows


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
