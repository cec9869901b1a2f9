"""Commands about many groups at once, and about how a group consumes a topic."""

from typing import Any, Literal

import click

from sdk.admin.command import command
from sdk.admin.list_file import read_list
from sdk.admin.params import broker_addr, cluster_name, option
from sdk.admin.session import Session
from sdk.admin.targets import at_each, chosen_addrs

FAMILY = "Consumer groups"
_EITHER = ("broker_addr", "cluster_name")


@command(
    "updateSubGroupList",
    broker_addr("create groups to which broker"),
    cluster_name("create groups to which cluster"),
    option(
        "f",
        "filename",
        "Path to a file containing a list of SubscriptionGroupConfig in json format",
        required=True,
        metavar="FILE",
    ),
    either=_EITHER,
)
async def update_sub_group_list(
    session: Session, broker_addr: str | None, cluster_name: str | None, filename: str
) -> dict[str, Any]:
    """Create or change the groups of a file: [{"groupName":"g","retryMaxTimes":16}, ...]."""
    from remoting.protocol.requests.groups import SubscriptionGroupConfig

    groups = read_list(session, filename, SubscriptionGroupConfig, "groupName")
    results = await at_each(
        session,
        await chosen_addrs(session, broker_addr, cluster_name),
        f"groups of {filename}",
        lambda addr: session.admin.create_groups(addr, groups),
        lambda addr: f"submit batch of subscription group config to {addr} success, please check the result later.",
    )
    return {"groups": [group.group_name for group in groups], "results": results}


@command(
    "setConsumeMode",
    broker_addr("create subscription group to which broker"),
    cluster_name("create subscription group to which cluster"),
    option("t", "topicName", "topic name", required=True),
    option("g", "groupName", "consumer group name", required=True),
    option("m", "mode", "consume mode. PULL/POP", type=click.Choice(["PULL", "POP"]), required=True),
    option(
        "q",
        "popShareQueueNum",
        "num of queue which share in pop mode",
        type=click.IntRange(min=-1),
        default=0,
        show_default=True,
    ),
    either=_EITHER,
)
async def set_consume_mode(
    session: Session,
    broker_addr: str | None,
    cluster_name: str | None,
    topic_name: str,
    group_name: str,
    mode: Literal["PULL", "POP"],
    pop_share_queue_num: int,
) -> dict[str, Any]:
    """Set how a group whose members let the broker assign queues consumes a topic: by pull, or by pop."""
    results = await at_each(
        session,
        await chosen_addrs(session, broker_addr, cluster_name),
        f"consume mode of {group_name}",
        lambda addr: session.admin.set_consume_mode(addr, topic_name, group_name, mode, pop_share_queue_num),
        lambda addr: f"set consume mode to {addr} success.",
    )
    if any(result["ok"] for result in results):
        session.say(
            f"topic[{topic_name}] group[{group_name}] consume mode[{mode}] popShareQueueNum[{pop_share_queue_num}]"
        )
    return {"topic": topic_name, "group": group_name, "mode": mode, "results": results}


COMMANDS = (update_sub_group_list, set_consume_mode)
