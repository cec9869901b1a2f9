"""Commands about brokers: state and options."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from sdk.admin.command import command
from sdk.admin.params import broker_addr, cluster_name, option
from sdk.admin.render import Row
from sdk.admin.session import Session
from sdk.admin.targets import MASTER_ID, Target, all_targets, at_each, chosen_addrs

FAMILY = "Brokers"
_EITHER = ("broker_addr", "cluster_name")
NO_MASTER = "NO_MASTER"


def _status_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for key, value in sorted(row["table"].items()):
            line = f"{key:<32}: {value}"
            yield f"{row['brokerAddr']:<24} {line}" if row["ofCluster"] else line


@command(
    "brokerStatus",
    broker_addr("Broker address"),
    cluster_name("which cluster"),
    either=_EITHER,
    show=_status_lines,
)
async def broker_status(session: Session, broker_addr: str | None, cluster_name: str | None) -> list[dict[str, Any]]:
    """Show the counters and the state of a broker, or of all brokers of a cluster."""
    addrs = await chosen_addrs(session, broker_addr, cluster_name, slaves=True)
    answers = await session.each(addrs, session.admin.broker_runtime_info)
    for addr, error in answers.errors.items():
        session.fail(error, f"broker {addr}")
    return [
        {"brokerAddr": addr, "ofCluster": cluster_name is not None, "table": table}
        for addr, table in answers.values.items()
    ]


def config_lines(title: str, config: dict[str, str]) -> Iterator[str]:
    """RocketMQ's list of options under a title."""
    yield f"============{title}============"
    for key, value in sorted(config.items()):
        yield f"{key:<50}=  {value}"


def _broker_config_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        master = row["masterAddr"]
        if master is None:
            title = row["brokerAddr"]
        elif master == row["brokerAddr"]:
            title = f"Master: {master}"
        else:
            title = f"My Master: {master}=====Slave: {row['brokerAddr']}"
        yield from config_lines(title, row["config"])
        yield ""


@command(
    "getBrokerConfig",
    broker_addr("get which broker"),
    cluster_name("get which cluster"),
    either=_EITHER,
    show=_broker_config_lines,
)
async def get_broker_config(
    session: Session, broker_addr: str | None, cluster_name: str | None
) -> list[dict[str, Any]]:
    """Show the options of a broker, or of all brokers of a cluster."""
    if broker_addr is not None:
        masters: dict[str, str | None] = {broker_addr: None}
    else:
        masters = _masters(all_targets(await session.admin.cluster_info(), cluster_name))
    answers = await session.each(masters, session.admin.broker_config)
    for addr, error in answers.errors.items():
        session.fail(error, f"broker {addr}")
    return [
        {"brokerAddr": addr, "masterAddr": masters[addr], "config": config} for addr, config in answers.values.items()
    ]


def _masters(targets: Sequence[Target]) -> dict[str, str | None]:
    """Broker address → address of its master."""
    masters = {one.broker_name: one.addr for one in targets if one.broker_id == MASTER_ID}
    return {one.addr: masters.get(one.broker_name, NO_MASTER) for one in targets}


@command(
    "updateBrokerConfig",
    broker_addr("update which broker"),
    cluster_name("update which cluster"),
    option("a", "updateAllBroker", "update all brokers include slave", type=bool, default=False),
    option("k", "key", "config key", required=True),
    option("v", "value", "config value", type=click.STRING, required=True),
    either=_EITHER,
)
async def update_broker_config(
    session: Session,
    broker_addr: str | None,
    cluster_name: str | None,
    update_all_broker: bool,
    key: str,
    value: str,
) -> dict[str, Any]:
    """Change an option of a running broker, or of all masters of a cluster."""
    results = await at_each(
        session,
        await chosen_addrs(session, broker_addr, cluster_name, slaves=update_all_broker),
        f"update config {key}",
        lambda addr: session.admin.update_broker_config(addr, {key: value.strip()}),
        lambda addr: f"update broker config success, {addr}",
    )
    return {"key": key, "value": value.strip(), "results": results}


COMMANDS = (broker_status, get_broker_config, update_broker_config)
