"""clusterTopology: what a cluster consists of, as a table, as JSON and as a picture."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import cluster_name, option
from skylark.mqadmin.render import Table
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.names import MASTER_ID
from skylark.mqcommon.visible import visible
from skylark.sdk.admin.broker_rows import base_row, lag_of
from skylark.sdk.admin.targets import all_targets

if TYPE_CHECKING:
    from skylark.sdk.admin.targets import Target
    from skylark.sdk.admin.topology import SetFacts

_SETS = Table(
    (
        ("#Cluster Name", "clusterName"),
        ("#Broker Name", "brokerName"),
        ("#Brokers", "brokers"),
        ("#Topics", "topicCount"),
        ("#WriteQueues", "writeQueues"),
        ("#ReadQueues", "readQueues"),
        ("#Lag", "lag"),
    ),
    "%-22s  %-32s  %-16s  %8d  %12d  %12d  %12d",
)
_LAGS = Table(
    (("#Topic", "topic"), ("#WriteQueues", "writeQueues"), ("#ReadQueues", "readQueues"), ("#Lag", "lag")),
    "%-64s  %12d  %12d  %12d",
)


def _lines(found: dict[str, Any], top: int) -> Iterator[str]:
    yield _SETS.head()
    for cluster in found["clusters"]:
        for one in cluster["sets"]:
            ids = [f"{each['brokerId']}{'' if each['error'] is None else '!'}" for each in one["brokers"]]
            yield _SETS.row({"clusterName": cluster["clusterName"], **one, "brokers": ",".join(ids)})
    yield ""
    yield _LAGS.head()
    for row in found["topics"][:top]:
        yield _LAGS.row({**row, "topic": visible(row["topic"])})
    if rest := found["topics"][top:]:
        yield f"and {len(rest):,} more topics with a lag of {sum(row['lag'] for row in rest):,}"


async def _facts(session: Session, cluster: str | None) -> "list[SetFacts]":
    from skylark.sdk.admin.topology import SetFacts, lags_of

    admin = session.admin
    targets = all_targets(await admin.cluster_info(), cluster)
    infos = await session.each((one.addr for one in targets), admin.broker_runtime_info)
    for addr, error in infos.errors.items():
        session.fail(error, f"broker {addr}")
    # The set's topics and groups are asked of its master, or of the lowest slave while there is none.
    first: dict[tuple[str, str], Target] = {}
    for target in targets:
        if target.addr in infos.values:
            first.setdefault((target.cluster, target.broker_name), target)
    addrs = [one.addr for one in first.values()]
    configs = await session.each(addrs, admin.all_topic_config)
    stats = await session.each(addrs, admin.broker_consume_stats)
    for answers, what in ((configs, "topics"), (stats, "groups")):
        for addr, error in answers.errors.items():
            session.fail(error, f"{what} of broker {addr}")
    masters = {one.broker_name: one.addr for one in targets if one.broker_id == MASTER_ID}
    found: dict[tuple[str, str], SetFacts] = {}
    for target in targets:
        key = target.cluster, target.broker_name
        facts = found.setdefault(key, SetFacts(target.cluster, target.broker_name, []))
        table = infos.values.get(target.addr, {})
        row = base_row(target, table, 0) | lag_of(target, infos.values, masters)
        kept = ("brokerId", "brokerAddr", "version", "inTps", "outTps", "lagBytes", "lagMs")
        answered = target.addr in infos.values
        facts.brokers.append({name: row[name] for name in kept} | {"error": None if answered else "no answer"})
        if first.get(key) is target:
            if (topics := configs.values.get(target.addr)) is not None:
                facts.queues = {
                    name: (one.read_queue_nums, one.write_queue_nums) for name, one in topics.topic_config_table.items()
                }
            if (groups := stats.values.get(target.addr)) is not None:
                facts.lags = lags_of(groups)
    return list(found.values())


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None


@command(
    "clusterTopology",
    option("", "svg", "also draw a picture into this file", type=click.Path(dir_okay=False), metavar="FILE"),
    option(
        "",
        "top",
        "topics and groups that the table and the picture have, those with the largest lag; the rest is a sum",
        type=click.IntRange(min=1),
        default=20,
        show_default=True,
    ),
    cluster_name("which cluster", default=None),
)
async def cluster_topology(
    session: Session, svg: str | None, top: int, cluster_name: str | None
) -> dict[str, Any] | None:
    """Show what clusters consist of: sets of brokers, queues of each topic, lag of each group.

    With --output json all topics and groups are there. System topics are left out.
    """
    from skylark.sdk.admin.topology import topology
    from skylark.sdk.admin.topology_picture import picture

    found = topology(await _facts(session, cluster_name))
    if svg is not None:
        _write(svg, picture(found, top))
    if session.json:
        return found
    for line in _lines(found, top):
        session.say(line)
    return None


FAMILIES = {"Clusters": (cluster_topology,)}
