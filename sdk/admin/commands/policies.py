"""Commands about what users may do (ACL 2.0)."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from mqcommon.errors import BrokerError, UserError
from sdk.admin.command import command
from sdk.admin.commands.users import FAMILY as FAMILY
from sdk.admin.commands.users import Names, brokers, where
from sdk.admin.params import Address, option
from sdk.admin.render import Table, java_value
from sdk.admin.session import Session
from sdk.admin.targets import at_each, chosen_addrs

if TYPE_CHECKING:
    from remoting.protocol.requests.auth import AclInfo

_EITHER = ("broker_addr", "cluster_name")
_DECISIONS = click.Choice(["Allow", "Deny"], case_sensitive=False)
_TYPES = click.Choice(["Custom", "Default"], case_sensitive=False)


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
        option("t", "policyType", f"the policyType of acl to {verb}", type=_TYPES, default="Custom", show_default=True),
    )


async def _put(session: Session, verb: str, given: dict[str, Any]) -> dict[str, Any]:
    from remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo, PolicyInfo

    entries = [
        PolicyEntryInfo(resource, given["actions"], given["source_ip"], given["decision"])
        for resource in given["resources"]
    ]
    acl = AclInfo(given["subject"], [PolicyInfo(given["policy_type"], entries)])
    put = session.admin.create_acl if verb == "create" else session.admin.update_acl
    results = await at_each(
        session,
        await brokers(session, given["broker_addr"], given["cluster_name"]),
        f"{verb} acl of {acl.subject}",
        lambda addr: put(addr, acl),
        lambda addr: f"{verb} acl to {addr} success.",
    )
    return {"acl": acl.to_wire(), "results": results}


@command("createAcl", *where("create acl to"), *_entry("create"), either=_EITHER)
async def create_acl(session: Session, **given: Any) -> dict[str, Any]:
    """Allow or deny a user actions on resources. Entries about the same resources are replaced."""
    return await _put(session, "create", given)


@command("updateAcl", *where("update acl to"), *_entry("update"), either=_EITHER)
async def update_acl(session: Session, **given: Any) -> dict[str, Any]:
    """Change what a user may do with resources; entries about other resources stay."""
    return await _put(session, "update", given)


@command(
    "deleteAcl",
    *where("delete acl from"),
    _subject("delete", required=True),
    option("r", "resources", "the resource of acl to delete; default: all policies of the subject", default=None),
    option("t", "policyType", "the policyType of acl to delete", type=_TYPES, default=None),
    either=_EITHER,
)
async def delete_acl(
    session: Session,
    broker_addr: str | None,
    cluster_name: str | None,
    subject: str,
    resources: str | None,
    policy_type: str | None,
) -> dict[str, Any]:
    """Delete the policies of a user, or those about one resource."""
    if policy_type is not None and resources is None:
        raise click.UsageError("-t/--policyType needs -r/--resources: without it all policies are deleted.")
    idle: list[str] = []

    async def delete(addr: str) -> None:
        before = await _seen(session, addr, subject)
        await session.admin.delete_acl(addr, subject, resources, policy_type)
        # Brokers accept the delete of policies that never were, as RocketMQ's do.
        if before is not None and before == await _seen(session, addr, subject):
            idle.append(addr)

    results = await at_each(
        session,
        await brokers(session, broker_addr, cluster_name),
        f"delete acl of {subject}",
        delete,
        lambda addr: f"{addr} has no such acl." if addr in idle else f"delete acl to {addr} success.",
    )
    if len(idle) == len(results):
        session.fail(UserError(f"{subject} has no policy about {resources}: see mqadmin getAcl -s {subject}"))
    return {"subject": subject, "resource": resources, "results": results}


async def _seen(session: Session, addr: str, subject: str) -> "AclInfo | None":
    """The policies of ``subject``; None when there are none, or this caller may not see them."""
    try:
        return await session.admin.get_acl(addr, subject)
    except BrokerError:
        return None


_ACLS = Table(
    (
        ("#Subject", "subject"),
        ("#PolicyType", "policyType"),
        ("#Resource", "resource"),
        ("#Actions", "actionsText"),
        ("#SourceIp", "sourceIpsText"),
        ("#Decision", "decision"),
    ),
    "%-16s  %-10s  %-22s  %-20s  %-24s  %-10s",
)


def _lines(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    return _ACLS.lines(
        {**row, "actionsText": java_value(row["actions"]), "sourceIpsText": java_value(row["sourceIps"])}
        for row in rows
    )


def _rows(acl: "AclInfo", addr: str) -> list[dict[str, Any]]:
    return [
        {
            "subject": acl.subject,
            "policyType": policy.policy_type,
            "resource": entry.resource,
            "actions": entry.actions,
            "sourceIps": entry.source_ips,
            "decision": entry.decision,
            "brokerAddr": addr,
        }
        for policy in acl.policies
        for entry in policy.entries
    ]


@command("getAcl", *where("get acl for"), _subject("get", required=True), show=_lines, either=_EITHER)
async def get_acl(
    session: Session, broker_addr: str | None, cluster_name: str | None, subject: str
) -> list[dict[str, Any]]:
    """Show what a user may do on a broker, or on each master of a cluster."""
    rows = []
    for addr in await chosen_addrs(session, broker_addr, cluster_name):
        acl = await session.admin.get_acl(addr, subject)
        rows += _rows(acl, addr) if acl is not None else []
    if not rows:
        raise UserError(f"{subject} has no policies; see mqadmin listAcl, or create some with mqadmin createAcl")
    return rows


@command(
    "listAcl",
    *where("get acl for"),
    option("s", "subject", "the subject of acl to filter: a part of it", default=None),
    option("r", "resource", "the resource of acl to filter: a part of it", default=None),
    show=_lines,
    either=_EITHER,
)
async def list_acl(
    session: Session, broker_addr: str | None, cluster_name: str | None, subject: str | None, resource: str | None
) -> list[dict[str, Any]]:
    """Show what all users may do on a broker, or on each master of a cluster."""
    return [
        row
        for addr in await chosen_addrs(session, broker_addr, cluster_name)
        for acl in await session.admin.list_acls(addr, subject, resource)
        for row in _rows(acl, addr)
    ]


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
async def copy_acl(session: Session, from_broker: str, to_broker: str, subjects: list[str] | None) -> dict[str, Any]:
    """Copy policies. Their users must exist at the target: see copyUser."""
    acls = await session.admin.list_acls(from_broker)
    if subjects is not None:
        acls = [acl for acl in acls if acl.subject in subjects]
        if missing := sorted(set(subjects) - {acl.subject for acl in acls}):
            raise UserError(f"{from_broker} has no policies of {', '.join(missing)}; see mqadmin listAcl")
    for acl in acls:
        await session.admin.update_acl(to_broker, acl)
        session.say(f"copy acl of {acl.subject} from {from_broker} to {to_broker} success.")
    return {"copied": [acl.subject for acl in acls]}


COMMANDS = (create_acl, update_acl, delete_acl, get_acl, list_acl, copy_acl)
