"""Finding messages by id, key and unique key; who consumed a message; handing a message to a consumer; traces."""

from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import TYPE_CHECKING

from skylark.mqcommon.arguments import LONG_MAX
from skylark.mqcommon.errors import BrokerError, SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import TRACE_TOPIC
from skylark.mqcommon.visible import visible
from skylark.remoting.protocol.codes import ResponseCode
from skylark.sdk.admin.failures import explain
from skylark.sdk.admin.reports.message_report import MessageReport
from skylark.sdk.admin.reports.problems import OnProblem, ReportProblem, report_absent_queues
from skylark.sdk.admin.reports.report import FLAT, OPTIONAL, named

if TYPE_CHECKING:
    from skylark.mqcommon.message.message import MessageExt
    from skylark.remoting.protocol.requests.clients import ConsumerConnection
    from skylark.sdk.admin.client import Admin
    from skylark.sdk.traces.records import Step


@lazy_dataclass(frozen=True, slots=True)
class MessageTrack:
    """Whether a group has consumed a message."""

    group: str = field(metadata=named("consumerGroup"))
    #: CONSUMED, CONSUMED_BUT_FILTERED, NOT_CONSUME_YET, NOT_ONLINE, PULL or UNKNOWN.
    kind: str = field(metadata=named("trackType"))
    #: Why it is not known.
    reason: str | None = field(metadata=named("exceptionDesc"))


@lazy_dataclass(frozen=True, slots=True)
class TrackedMessage:
    """A message, and the groups that read its topic."""

    message: MessageReport = field(metadata=FLAT)
    tracks: tuple[MessageTrack, ...]


@lazy_dataclass(frozen=True, slots=True)
class DirectResult:
    """The result of handing a message to a push consumer."""

    msg_id: str
    offset_msg_id: str
    is_orderly: bool = field(metadata=named("order"))
    auto_commit: bool
    #: RocketMQ's result, such as CR_SUCCESS.
    consume_result: str
    remark: str | None
    spent_ms: int = field(metadata=named("spentTimeMills"))


@lazy_dataclass(frozen=True, slots=True)
class TraceStep:
    """A step in the life of a message, by the client at ``client_host``. Unknown details are None."""

    #: Pub, Sub, EndTransaction or Recall.
    kind: str = field(metadata=named("type"))
    msg_id: str
    group: str
    client_host: str
    #: When the step began; when it ended, for a handler whose beginning is not in the trace.
    timestamp_ms: int = field(metadata=named("timestamp"))
    #: None while a handler has not ended, and where the trace does not say.
    cost_ms: int | None = field(metadata=named("costTime"))
    status: str
    region: str | None = field(metadata=named("regionId", is_optional=True))
    topic: str | None = field(metadata=OPTIONAL)
    tags: str | None = field(metadata=OPTIONAL)
    keys: str | None = field(metadata=OPTIONAL)
    store_host: str | None = field(metadata=OPTIONAL)
    offset_msg_id: str | None = field(metadata=named("offSetMsgId", is_optional=True))
    body_bytes: int | None = field(metadata=named("bodyLength", is_optional=True))
    message_type: str | None = field(metadata=named("msgType", is_optional=True))
    request_id: str | None = field(metadata=OPTIONAL)
    retry_times: int | None = field(metadata=OPTIONAL)
    context_code: str | None = field(metadata=OPTIONAL)
    transaction_id: str | None = field(metadata=OPTIONAL)
    transaction_state: str | None = field(metadata=OPTIONAL)
    is_from_check: bool | None = field(metadata=named("fromTransactionCheck", is_optional=True))


async def message_tracks(admin: "Admin", message: "MessageExt") -> tuple[MessageTrack, ...]:
    """For each group that reads the topic, whether the group has consumed ``message``."""
    return tuple([await _track(admin, message, group) for group in await admin.groups_of_topic(message.topic)])


async def _track(admin: "Admin", message: "MessageExt", group: str) -> MessageTrack:
    kind, reason = "UNKNOWN", None
    try:
        consumers = await admin.consumer_connection(group)
        # RocketMQ's rules. A pull consumer may keep its offsets elsewhere, so they say nothing about a message.
        if consumers.consume_type == "CONSUME_ACTIVELY":
            kind = "PULL"
        elif not await _is_consumed(admin, message, group):
            kind = "NOT_CONSUME_YET"
        else:
            kind = "CONSUMED_BUT_FILTERED" if _is_filtered(consumers, message) else "CONSUMED"
    except BrokerError as error:
        kind = "NOT_ONLINE" if error.code == ResponseCode.CONSUMER_NOT_ONLINE else kind
        reason = f"CODE:{error.code} DESC:{error.remark}"
    except SkylarkError as error:
        reason = explain(error)
    return MessageTrack(group, kind, reason)


async def _is_consumed(admin: "Admin", message: "MessageExt", group: str) -> bool:
    # A message that was found by its offset id has no name of a broker, only the address that stored it.
    name = message.broker_name or await _broker_name(admin, message.store_host)
    stats = await admin.consume_stats(group, message.topic)
    place = (message.topic, name, message.queue_id)
    return any(
        queue == place and offsets.consumer_offset > message.queue_offset
        for queue, offsets in stats.offset_table.items()
    )


async def _broker_name(admin: "Admin", addr: str) -> str:
    info = await admin.cluster_info()
    found = (name for name, broker in info.broker_addr_table.items() if addr in broker.broker_addrs.values())
    return next(found, "")


def _is_filtered(consumers: "ConsumerConnection", message: "MessageExt") -> bool:
    subscription = consumers.subscription_table.get(message.topic)
    if subscription is None:
        return False
    wanted = set(subscription.tags_set or ())
    return bool(wanted) and "*" not in wanted and message.tags not in wanted


async def messages_by_id(
    admin: "Admin",
    msg_id: str,
    topic: str | None = None,
    view: "Callable[[str], Awaitable[list[MessageExt]]] | None" = None,
) -> "list[MessageExt]":
    """The messages with an offset message id; with ``topic``, first the message with this unique key.

    The messages of a batch that is stored as one share an offset message id. ``view`` finds them in place of
    `Admin.view_messages`.
    """
    # Both kinds of ids have 32 hexadecimal digits when addresses are IPv4. Search for the unique key first: read as an
    # offset id, a unique key would name some address and offset.
    if topic is not None:
        found = await admin.query_by_unique_key(topic, msg_id)
        if found:
            return found[:1]
    return await (view or admin.view_messages)(msg_id)


async def messages_by_key(
    admin: "Admin",
    topic: str,
    key: str,
    *,
    most: int,
    begin_ms: int = 0,
    end_ms: int = LONG_MAX,
    cluster: str | None = None,
    on_problem: OnProblem,
) -> "list[MessageExt]":
    """At most ``most`` messages of ``topic`` with a key. Finding none is a problem, as are brokers that are away."""
    on_partial = _reports_partial(on_problem)
    found = await admin.query_message_by_key(topic, key, most, begin_ms, end_ms, cluster, on_partial=on_partial)
    if not found:
        on_problem(ReportProblem("", UserError(f"no message of topic {topic} has key {key}; check key and time range")))
    if cluster is None:
        await report_absent_queues(admin, [topic], on_problem)
    return found


async def messages_by_unique_key(admin: "Admin", topic: str, key: str, *, on_problem: OnProblem) -> "list[MessageExt]":
    """The copies of the message with a unique key. Finding none is a problem, and so are brokers that are away."""
    partial: list[str] = []
    found = await admin.query_by_unique_key(topic, key, on_partial=partial.append)
    if not found:
        for why in partial:
            _reports_partial(on_problem)(why)
        on_problem(ReportProblem("", UserError(f"no message of topic {topic} has the unique key {key}; check both")))
        await report_absent_queues(admin, [topic], on_problem)
    return found


def _reports_partial(on_problem: OnProblem) -> Callable[[str], None]:
    """For ``on_partial`` of queries: reports why a broker has not searched all messages."""
    return lambda why: on_problem(ReportProblem(f"not all messages were searched. {why}"))


async def consume_directly(admin: "Admin", message: "MessageExt", group: str, client_id: str) -> DirectResult:
    """Give ``message`` to a push consumer of ``group``, even if the group has consumed it."""
    info = await admin.consumer_running_info(group, client_id)
    if info.properties.get("PROP_CONSUME_TYPE") != "CONSUME_PASSIVELY":
        raise UserError(f"client {client_id} of group {group} is not a push consumer: messages cannot be sent to it")
    result = await admin.consume_message_directly(group, client_id, message)
    return DirectResult(
        message.msg_id,
        message.offset_msg_id,
        result.order,
        result.auto_commit,
        result.consume_result,
        None if result.remark is None else visible(result.remark),
        result.spent_time_mills,
    )


async def message_trace(
    admin: "Admin",
    msg_id: str,
    *,
    trace_topic: str = TRACE_TOPIC,
    begin_ms: int = 0,
    end_ms: int = LONG_MAX,
    most: int = 64,
    on_problem: OnProblem,
) -> list[TraceStep]:
    """Who sent and who consumed the message with a unique key, in the order of time. Finding no trace is a problem.

    ``most``: the most messages of the trace topic to read. RouteNotFound when there is no such topic.
    """
    from skylark.sdk.traces.records import decode_records, timeline

    on_partial = _reports_partial(on_problem)
    found = await admin.query_message_by_key(trace_topic, msg_id, most, begin_ms, end_ms, on_partial=on_partial)
    records = [
        (record, message.born_host.rpartition(":")[0])
        for message in found
        for record in decode_records(message.body.decode("utf-8", "replace"))
    ]
    steps = timeline(msg_id, records)
    if not steps:
        text = f"topic {trace_topic} has no trace of {msg_id}; check the id and the trace topic, and that clients trace"
        on_problem(ReportProblem("", UserError(text)))
    return [_step(step) for step in steps]


def _step(step: "Step") -> TraceStep:
    record = step.record
    return TraceStep(
        step.kind,
        record.msg_id,
        step.group,
        step.client_host,
        step.timestamp_ms,
        step.cost_ms,
        step.status,
        record.region,
        record.topic,
        record.tags,
        record.keys,
        record.store_host,
        record.offset_msg_id,
        record.body_length,
        record.message_type,
        record.request_id,
        record.retry_times,
        record.context_code,
        record.transaction_id,
        record.transaction_state,
        record.from_check,
    )
