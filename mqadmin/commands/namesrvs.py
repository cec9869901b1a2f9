"""Commands about NameServers: options, the key-value store, and the write permission of brokers.

NameServers do not exchange data, so each change is made at all of them, and may fail at some of them.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.commands.brokers import config_lines
from skylark.mqadmin.params import broker_name, option
from skylark.mqadmin.scope import at_servers
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.order_records import refuse_if_ordered
from skylark.sdk.admin.reports.problems import report_unanswered
from skylark.sdk.admin.reports.report import FLAT

if TYPE_CHECKING:
    from skylark.sdk.admin.client import Admin
    from skylark.sdk.admin.reports.changes import NameServerChange


async def _each_namesrv(
    session: Session,
    doing: str,
    act: Callable[["Admin", str], Awaitable[object]],
    done: Callable[[str], str] | None = None,
) -> "list[NameServerChange]":
    from skylark.sdk.admin.reports.changes import NameServerChange

    async def at(addr: str) -> None:
        async with session.admin_at(addr) as admin:
            await act(admin, addr)

    return await at_servers(session, session.namesrv_addrs, doing, at, done, NameServerChange)


def _broker_name() -> click.Option:
    return broker_name("broker name", required=True)


@lazy_dataclass(frozen=True, slots=True)
class WritePermChange:
    """The result of a change of a broker's write permission at one NameServer, and the number of changed topics."""

    change: "NameServerChange" = field(metadata=FLAT)
    topic_count: int | None


@command(
    "wipeWritePerm",
    _broker_name(),
    option("", "force", "wipe even if the broker has queues of ordered topics", type=bool, is_flag=True),
)
async def wipe_write_perm(session: Session, broker_name: str, force: bool) -> list[WritePermChange]:
    """Stop sends to a broker: take the write permission from its topics in every NameServer."""
    if not force:
        await refuse_if_ordered(session.admin, broker_name, session.warn)
    return await _write_perm(session, "wipe", broker_name, lambda admin: admin.wipe_write_perm(broker_name))


@command("addWritePerm", _broker_name())
async def add_write_perm(session: Session, broker_name: str) -> list[WritePermChange]:
    """Allow sends to a broker again: give the write permission back to its topics in every NameServer."""
    return await _write_perm(session, "add", broker_name, lambda admin: admin.add_write_perm(broker_name))


# NameServers know no address of a broker that is away.
@command("forgetBroker", option("b", "brokerName", "broker name", required=True))
async def forget_broker(session: Session, broker_name: str) -> "list[NameServerChange]":
    """Forget a broker that is away for good: reads and tables count as complete without it.

    Brokers hear of it within their period of registration (30 s). A drained broker that is stopped needs no command,
    and a broker that comes back all the same is known again.
    """
    results = await _each_namesrv(
        session, f"forget {broker_name}", lambda admin, addr: admin.forget_broker(broker_name)
    )
    if all(result.ok for result in results):
        session.say(f"broker {broker_name} is forgotten: what was on it only is not read any more.")
    return results


async def _write_perm(
    session: Session, verb: str, broker_name: str, change: Callable[["Admin"], Awaitable[dict[str, int]]]
) -> list[WritePermChange]:
    counts: dict[str, int] = {}

    async def act(admin: "Admin", addr: str) -> None:
        counts[addr] = sum((await change(admin)).values())

    def text(addr: str, end: str) -> str:
        return f"{verb} write perm of broker[{broker_name}] in name server[{addr}] {end}"

    results = await _each_namesrv(
        session, f"{verb} write perm of {broker_name}", act, lambda addr: text(addr, f"OK, {counts[addr]}")
    )
    for result in results:
        if not result.ok:
            session.say(text(result.namesrv_addr, "Failed"))
    if counts and not any(counts.values()):
        session.fail(
            UserError(f"no topic of broker {broker_name} was changed: check its name with mqadmin clusterList")
        )
    return [WritePermChange(result, counts.get(result.namesrv_addr)) for result in results]


@lazy_dataclass(frozen=True, slots=True)
class NameServerConfig:
    """The options of a NameServer, as texts by their names."""

    namesrv_addr: str
    config: Mapping[str, str]


def _config_lines(rows: Sequence[NameServerConfig]) -> Iterator[str]:
    for row in rows:
        yield from config_lines(row.namesrv_addr, row.config)


@command("getNamesrvConfig", show=_config_lines)
async def get_namesrv_config(session: Session) -> list[NameServerConfig]:
    """Show the options of each NameServer of -n."""

    async def ask(addr: str) -> dict[str, str]:
        return (await session.admin.namesrv_config([addr]))[addr]

    answers = await session.each(session.namesrv_addrs, ask)
    report_unanswered("NameServer", answers, session.report_problem)
    return [NameServerConfig(addr, config) for addr, config in answers.values.items()]


@command(
    "updateNamesrvConfig",
    option("k", "key", "config key", required=True),
    option("v", "value", "config value", type=click.STRING, required=True),
)
async def update_namesrv_config(session: Session, key: str, value: str) -> "list[NameServerChange]":
    """Change an option of each running NameServer of -n."""
    results = await _each_namesrv(
        session, f"update config {key}", lambda admin, addr: admin.update_namesrv_config({key: value.strip()})
    )
    done = [result.namesrv_addr for result in results if result.ok]
    if done:
        session.say(f"update name server config success![{', '.join(done)}]")
        session.say(f"{key} : {value.strip()}")
    return results


@command(
    "updateKvConfig",
    option("s", "namespace", "set the namespace", required=True),
    option("k", "key", "set the key name", required=True),
    option("v", "value", "set the key value", type=click.STRING, required=True),
)
async def update_kv_config(session: Session, namespace: str, key: str, value: str) -> "list[NameServerChange]":
    """Set a value in the key-value store of every NameServer."""
    results = await _each_namesrv(
        session, f"set {namespace} {key}", lambda admin, addr: admin.put_kv(namespace, key, value.strip())
    )
    if all(result.ok for result in results):
        session.say("create or update kv config to namespace success.")
    return results


@command(
    "deleteKvConfig",
    option("s", "namespace", "set the namespace", required=True),
    option("k", "key", "set the key name", required=True),
)
async def delete_kv_config(session: Session, namespace: str, key: str) -> "list[NameServerChange]":
    """Remove a value from the key-value store of every NameServer."""
    had: list[str] = []

    async def delete(admin: "Admin", addr: str) -> None:
        if await admin.get_kv(namespace, key) is not None:
            had.append(addr)
        await admin.delete_kv(namespace, key)

    results = await _each_namesrv(session, f"delete {namespace} {key}", delete)
    is_deleted = all(result.ok for result in results)
    if is_deleted and not had:
        session.fail(UserError(f"namespace {namespace} has no key {key}: check both names"))
    elif is_deleted:
        session.say("delete kv config from namespace success.")
    return results


FAMILIES = {
    "NameServers": (
        get_namesrv_config,
        update_namesrv_config,
        update_kv_config,
        delete_kv_config,
        wipe_write_perm,
        add_write_perm,
        forget_broker,
    ),
}
