"""Commands that make brokers delete files at once: expired messages, and consume queues that are no longer needed."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import click

from sdk.admin.command import command
from sdk.admin.params import broker_addr, option
from sdk.admin.session import Session
from sdk.admin.targets import all_ok, all_targets, at_each

FAMILY = "Stores"


def _where() -> tuple[click.Option, click.Option]:
    return broker_addr("Broker address", default=None), option("c", "cluster", "clustername", default=None)


def _result_lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield "success" if all_ok(result["results"]) else "false"


async def _at_brokers(
    session: Session, broker_addr: str | None, cluster: str | None, doing: str, act: Callable[[str], Awaitable[None]]
) -> dict[str, Any]:
    """Run ``act`` at one broker, at all brokers (slaves too) of a cluster, or at all brokers of all clusters."""
    if broker_addr is not None and cluster is not None:
        raise click.UsageError("Give only one of --brokerAddr or --cluster.")
    addrs = (
        [broker_addr] if broker_addr else [one.addr for one in all_targets(await session.admin.cluster_info(), cluster)]
    )

    async def shown(addr: str) -> None:
        session.progress(f"{doing} at {addr}")
        await act(addr)

    return {"results": await at_each(session, addrs, doing, shown, None)}


@command("deleteExpiredCommitLog", *_where(), show=_result_lines)
async def delete_expired_commit_log(session: Session, broker_addr: str | None, cluster: str | None) -> dict[str, Any]:
    """Delete commit log files that are older than the broker's fileReservedTime, at any hour.

    Without -b and -c: at all brokers of all clusters.
    """
    act = session.admin.delete_expired_commit_log
    return await _at_brokers(session, broker_addr, cluster, "delete expired commit log files", act)


@command("cleanExpiredCQ", *_where(), show=_result_lines)
async def clean_expired_cq(session: Session, broker_addr: str | None, cluster: str | None) -> dict[str, Any]:
    """Delete consume queue files whose messages have been deleted.

    Without -b and -c: at all brokers of all clusters.
    """
    act = session.admin.clean_expired_consume_queue
    return await _at_brokers(session, broker_addr, cluster, "clean expired consume queues", act)


@command("cleanUnusedTopic", *_where(), show=_result_lines)
async def clean_unused_topic(session: Session, broker_addr: str | None, cluster: str | None) -> dict[str, Any]:
    """Delete the consume queues of topics that the broker no longer has.

    Without -b and -c: at all brokers of all clusters.
    """
    act = session.admin.clean_unused_topic
    return await _at_brokers(session, broker_addr, cluster, "clean unused topics", act)


COMMANDS = (delete_expired_commit_log, clean_expired_cq, clean_unused_topic)
