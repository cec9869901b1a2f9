"""Which groups have consumed a message: RocketMQ's message tracks, one for each group that reads the topic."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mqcommon.errors import BrokerError, SkylarkError
from sdk.admin.failures import explain
from sdk.admin.render import java_object
from sdk.admin.session import Session

if TYPE_CHECKING:
    from mqcommon.message.message import MessageExt
    from remoting.protocol.requests.clients import ConsumerConnection

_NOT_ONLINE = 206


async def message_tracks(session: Session, message: "MessageExt") -> list[dict[str, Any]]:
    """One row per group; empty when no group reads the topic."""
    groups = await session.admin.groups_of_topic(message.topic)
    return [await _track(session, message, group) for group in groups]


def track_line(track: Mapping[str, Any]) -> str:
    """RocketMQ's ``MessageTrack.toString``."""
    return java_object("MessageTrack", track)


async def _track(session: Session, message: "MessageExt", group: str) -> dict[str, Any]:
    kind, reason = "UNKNOWN", None
    try:
        consumers = await session.admin.consumer_connection(group)
        if consumers.consume_type == "CONSUME_ACTIVELY":
            kind = "PULL"
        elif not await _is_consumed(session, message, group):
            kind = "NOT_CONSUME_YET"
        else:
            kind = "CONSUMED_BUT_FILTERED" if _is_filtered(consumers, message) else "CONSUMED"
    except BrokerError as error:
        kind = "NOT_ONLINE" if error.code == _NOT_ONLINE else kind
        reason = f"CODE:{error.code} DESC:{error.remark}"
    except SkylarkError as error:
        reason = explain(error)
    return {"consumerGroup": group, "trackType": kind, "exceptionDesc": reason}


async def _is_consumed(session: Session, message: "MessageExt", group: str) -> bool:
    name = message.broker_name or await _broker_name(session, message.store_host)
    stats = await session.admin.consume_stats(group, message.topic)
    place = (message.topic, name, message.queue_id)
    return any(
        queue == place and offsets.consumer_offset > message.queue_offset
        for queue, offsets in stats.offset_table.items()
    )


async def _broker_name(session: Session, addr: str) -> str:
    info = await session.admin.cluster_info()
    found = (name for name, broker in info.broker_addr_table.items() if addr in broker.broker_addrs.values())
    return next(found, "")


def _is_filtered(consumers: "ConsumerConnection", message: "MessageExt") -> bool:
    subscription = consumers.subscription_table.get(message.topic)
    if subscription is None:
        return False
    wanted = set(subscription.tags_set or ())
    return bool(wanted) and "*" not in wanted and message.tags not in wanted
