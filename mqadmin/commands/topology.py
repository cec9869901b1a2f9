"""clusterTopology: the sets, topics and groups of a cluster, as a table, as JSON and as a picture."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import cluster_name, option
from skylark.mqadmin.render import Table
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.visible import visible

if TYPE_CHECKING:
    from skylark.sdk.admin.topology import Topology

_SETS = Table(
    (
        ("#Cluster Name", "cluster_name"),
        ("#Broker Name", "broker_name"),
        ("#Brokers", "brokers"),
        ("#Topics", "topic_count"),
        ("#WriteQueues", "write_queues"),
        ("#ReadQueues", "read_queues"),
        ("#Lag", "lag"),
    ),
    "%-22s  %-32s  %-16s  %8d  %12d  %12d  %12d",
)
_LAGS = Table(
    (
        ("#Topic", lambda row: visible(row.topic)),
        ("#WriteQueues", "write_queues"),
        ("#ReadQueues", "read_queues"),
        ("#Lag", "lag"),
    ),
    "%-64s  %12d  %12d  %12d",
)


def _lines(found: "Topology", top: int) -> Iterator[str]:
    yield _SETS.head()
    for cluster in found.clusters:
        for one in cluster.sets:
            ids = [f"{each.broker_id}{'' if each.error is None else '!'}" for each in one.brokers]
            yield _SETS.row(one, cluster_name=cluster.cluster_name, brokers=",".join(ids))
    yield ""
    yield from _LAGS.lines(found.topics[:top])
    if rest := found.topics[top:]:
        yield f"and {len(rest):,} more topics with a lag of {sum(row.lag for row in rest):,}"


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
        "number of topics and groups in the table and the picture, largest lag first; the rest is a sum",
        type=click.IntRange(min=1),
        default=20,
        show_default=True,
    ),
    cluster_name("which cluster", default=None),
)
async def show_topology(session: Session, svg: str | None, top: int, cluster_name: str | None) -> "Topology | None":
    """Show the parts of clusters: sets of brokers, queues of each topic, lag of each group.

    With --output json all topics and groups are there. System topics are left out.
    """
    from skylark.sdk.admin.reports.cluster_topology import cluster_topology
    from skylark.sdk.admin.topology_picture import picture

    found = await cluster_topology(
        session.admin, cluster_name, on_problem=session.report_problem, on_progress=session.progress
    )
    if svg is not None:
        _write(svg, picture(found, top))
    if session.json:
        return found
    for line in _lines(found, top):
        session.say(line)
    return None


FAMILIES = {"Clusters": (show_topology,)}
