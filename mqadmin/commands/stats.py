"""Commands about the load: counters, timed test messages, and in rounds the backlog of all groups."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import broker_name, option, topic_option
from skylark.mqadmin.render import Table, java_object, queue_text, seconds_text
from skylark.mqadmin.session import Session, in_rounds
from skylark.mqcommon.errors import BrokerError, RouteNotFound, SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import DLQ_PREFIX, RETRY_PREFIX
from skylark.sdk.admin.failures import explain
from skylark.sdk.admin.reports.all_groups import ProgressOfGroups, progress_of_groups
from skylark.sdk.admin.reports.backlog import UndoneTopic, undone_of
from skylark.sdk.admin.reports.report import OPTIONAL, named
from skylark.sdk.admin.targets import all_targets

if TYPE_CHECKING:
    from skylark.mqcommon.message.message import Message
    from skylark.mqcommon.message.queue import MessageQueue
    from skylark.sdk.admin.reports.counters import CounterRow
    from skylark.sdk.producer.producer import Producer
    from skylark.sdk.producer.result import SendResult

_COLUMNS = (
    ("#Topic", "topic"),
    ("#Consumer Group", "consumer_group"),
    ("#Accumulation", "accumulation"),
    ("#InTPS", "in_tps"),
    ("#OutTPS", "out_tps"),
    ("#InMsg24Hour", "in_of_day"),
    ("#OutMsg24Hour", "out_of_day"),
)
_OF_GROUP = Table(_COLUMNS, "%-64s  %-64s %12d %11.2f %11.2f %14d %14d", "%-64s  %-64s %12s %11s %11s %14s %14s")
_WITHOUT_GROUP = Table(_COLUMNS, "%-64s  %-64s %12d %11.2f %11s %14d %14s")


def _counter_lines(rows: "Sequence[CounterRow]") -> Iterator[str]:
    yield _OF_GROUP.head()
    for row in rows:
        if row.consumer_group is None:
            yield _WITHOUT_GROUP.row(row, consumer_group="", out_tps="", out_of_day="NO_CONSUMER")
        else:
            yield _OF_GROUP.row(row)


@command(
    "statsAll",
    option("a", "activeTopic", "print active topic only", type=bool, is_flag=True),
    option("t", "topic", "print select topic only", default=None),
    show=_counter_lines,
)
async def stats_all(session: Session, active_topic: bool, topic: str | None) -> "list[CounterRow]":
    """Show the messages in and out of each topic and group: a second, in the last day, and how many wait."""
    from skylark.sdk.admin.reports.counters import topic_counters

    # Retry topics and dead letters are counted with their groups.
    every = [
        name for name in sorted(await session.admin.topic_list()) if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    ]
    # For a single topic, ask for each of its few groups.
    bulk = None
    if topic is None:
        bulk = await progress_of_groups(
            session.admin, traffic=True, on_problem=session.report_problem, on_progress=session.progress
        )
    answers = await session.each(
        every if topic is None else [name for name in every if name == topic] or [topic],
        lambda name: topic_counters(session.admin, name, bulk),
    )
    for name, counters in answers.values.items():
        if counters.absent:
            names = ", ".join(counters.absent)
            session.warn(f"topic {name}: what brokers have that are away is not counted: {names}")
    for name, error in answers.errors.items():
        # a topic that was deleted meanwhile has no route
        if topic is not None or not isinstance(error, RouteNotFound):
            session.fail(error, f"topic {name}")
    rows = [row for counters in answers.values.values() for row in counters.rows]
    return [row for row in rows if not active_topic or row.in_of_day or row.out_of_day]


_GROUP = "TOOLS_PRODUCER"
_COUNT = click.IntRange(min=1)
_SIZE = click.IntRange(min=1)
_SENT = Table(
    (
        ("#Broker Name", "broker_name"),
        ("#QID", "queue_id"),
        ("#Send Result", lambda row: "true" if row.ok else "false"),
        ("#RT", "rt_ms"),
    ),
    "%-32s  %-4s  %-20s    %s",
)
_CLUSTER = Table(
    (
        ("#Cluster Name", "cluster_name"),
        ("#Broker Name", "broker_name"),
        ("#RT", lambda row: f"{row.rt_ms:.2f}"),
        ("#successCount", "success_count"),
        ("#failCount", "fail_count"),
    ),
    "%-24s  %-24s  %-8s  %-16s  %-16s",
    "%-24s  %-24s  %-4s  %-8s  %-8s",
)


def _body(size: int) -> bytes:
    return b"a" * size


def _average_ms(times_ms: Sequence[int]) -> float:
    """The mean time, without the first send, which also opens connections."""
    counted = times_ms[1:] or times_ms
    return sum(counted) / len(counted)


class _Sent:
    """One send: its result or its error, the queue that was chosen, and how long it took."""

    def __init__(self) -> None:
        self.result: SendResult | None = None
        self.error: SkylarkError | None = None
        self.queue: MessageQueue | None = None
        self.took_ms = 0


async def _send(producer: "Producer", message: "Message", number: int | None = None) -> _Sent:
    """Send a message; with ``number``, to queue ``number`` modulo the topic's number of queues."""
    import trio

    sent = _Sent()

    def choose(queues: "Sequence[MessageQueue]", message: "Message") -> "MessageQueue":
        sent.queue = queues[(number or 0) % len(queues)]
        return sent.queue

    began = trio.current_time()
    try:
        sent.result = await producer.send(message, selector=None if number is None else choose)
    except SkylarkError as error:
        sent.error = error
    sent.took_ms = round((trio.current_time() - began) * 1000)
    return sent


def _result_text(result: "SendResult") -> str:
    """RocketMQ's ``SendResult.toString``."""
    members = {
        "sendStatus": result.status.name,
        "msgId": result.msg_id,
        "offsetMsgId": result.offset_msg_id,
        "messageQueue": queue_text(result.queue),
        "queueOffset": result.queue_offset,
    }
    return java_object("SendResult", members)


@lazy_dataclass(frozen=True, slots=True)
class TestSend:
    """A message that was sent to a broker's own topic, how long the send took, and its result or error."""

    rt_ms: int
    send_status: str | None
    msg_id: str | None
    error: str | None


@lazy_dataclass(frozen=True, slots=True)
class QueueSend:
    """A message that was sent to a queue, and how long the send took. Without a queue the number is -1."""

    broker_name: str
    queue_id: int
    ok: bool
    rt_ms: int
    error: str | None = field(default=None, metadata=OPTIONAL)


@lazy_dataclass(frozen=True, slots=True)
class QueueSends:
    """Messages that were sent to the queues of a topic, and the mean time of a send, without the first."""

    topic: str
    sends: Sequence[QueueSend]
    avg_rt_ms: float


@lazy_dataclass(frozen=True, slots=True)
class BrokerProbe:
    """Messages that were sent to a broker's own topic: the mean time of a send, and how many failed."""

    cluster_name: str
    broker_name: str
    rt_ms: float
    success_count: int
    fail_count: int
    timestamp_ms: int = field(metadata=named("timestamp"))


@command(
    "sendMsgStatus",
    broker_name("Broker Name", required=True),
    option("s", "messageSize", "Message Size", type=_SIZE, default=128, show_default=True),
    option("c", "count", "send message count", type=_COUNT, default=50, show_default=True),
)
async def send_msg_status(session: Session, broker_name: str, message_size: int, count: int) -> list[TestSend]:
    """Send messages to a broker's own topic, which has the broker's name, and print the result of each."""
    from skylark.mqcommon.message.message import Message

    known = sorted((await session.admin.cluster_info()).broker_addr_table)
    if broker_name not in known:  # a send would create a topic of that name
        raise UserError(f"there is no broker {broker_name}; the NameServer knows: {', '.join(known) or 'none'}")
    rows: list[TestSend] = []
    async with session.producer(_GROUP) as producer:
        # The first send also opens the connection.
        if (first := await _send(producer, Message(broker_name, _body(16)))).error is not None:
            raise first.error
        for _ in range(count):
            sent = await _send(producer, Message(broker_name, _body(message_size)))
            if sent.result is not None:
                session.say(f"rt={sent.took_ms}ms, SendResult={_result_text(sent.result)}")
                rows.append(TestSend(sent.took_ms, sent.result.status.name, sent.result.msg_id, None))
            elif sent.error is not None:
                error = session.fail(sent.error, f"rt={sent.took_ms}ms")
                rows.append(TestSend(sent.took_ms, None, None, error))
    return rows


@command(
    "checkMsgSendRT",
    topic_option(),
    option("a", "amount", "message amount", type=_COUNT, default=100, show_default=True),
    option("s", "size", "message size in bytes", type=_SIZE, default=128, show_default=True),
)
async def check_msg_send_rt(session: Session, topic: str, amount: int, size: int) -> QueueSends:
    """Send messages to the queues of a topic in turn, and print how long each took."""
    from skylark.mqcommon.message.message import Message

    rows: list[QueueSend] = []
    session.say(_SENT.head())
    async with session.producer(_GROUP) as producer:
        for number in range(amount):
            sent = await _send(producer, Message(topic, _body(size)), number)
            if sent.error is not None and sent.queue is None:
                raise sent.error  # there is no queue to send to
            place = ("", -1) if sent.queue is None else (sent.queue.broker_name, sent.queue.queue_id)
            row = QueueSend(*place, sent.error is None, sent.took_ms)
            session.say(_SENT.row(row))
            rows.append(row if sent.error is None else replace(row, error=session.fail(sent.error)))
    average = _average_ms([row.rt_ms for row in rows])
    session.say(f"Avg RT: {average:.2f}")
    return QueueSends(topic, rows, average)


@command(
    "clusterRT",
    option("a", "amount", "message amount", type=_COUNT, default=100, show_default=True),
    option("s", "size", "message size in bytes", type=_SIZE, default=128, show_default=True),
    option("c", "cluster", "cluster name; default: all clusters", default=None),
    option("p", "printLog", "print as tlog", type=bool, default=False, show_default=True),
    option("m", "machineRoom", "machine room name", default="noname", show_default=True),
    option(
        "i",
        "interval",
        "print interval",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        default=10.0,
        show_default=True,
    ),
)
async def cluster_rt(
    session: Session, amount: int, size: int, cluster: str | None, print_log: bool, machine_room: str, interval: float
) -> None:
    """Send messages to each broker's own topic, and print the mean time; repeat until Ctrl-C."""
    if not all_targets(await session.admin.cluster_info(), cluster):
        raise UserError("the NameServer knows no broker; see mqadmin clusterList")
    if not print_log:
        session.say(_CLUSTER.head())

    def lines(rows: list[BrokerProbe]) -> Iterator[str]:
        for row in rows:
            if print_log:
                names = (row.cluster_name, row.broker_name)
                yield "|".join((seconds_text(row.timestamp_ms), machine_room, *names, f"{row.rt_ms:.0f}"))
            else:
                yield _CLUSTER.row(row)

    async with session.producer(_GROUP) as producer:
        await in_rounds(session, interval, lambda: _probe(session, producer, cluster, amount, size), lines)


async def _probe(
    session: Session, producer: "Producer", cluster: str | None, amount: int, size: int
) -> list[BrokerProbe]:
    from skylark.mqcommon.message.message import Message

    targets = all_targets(await session.admin.cluster_info(), cluster)
    names = list(dict.fromkeys((one.cluster, one.broker_name) for one in targets))
    rows = []
    for cluster_name, name in names:
        sends = [await _send(producer, Message(name, _body(size))) for _ in range(amount)]
        errors = [sent.error for sent in sends if sent.error is not None]
        if errors:
            session.warn(f"broker {name}: {explain(errors[0])}")
        rows.append(
            BrokerProbe(
                cluster_name,
                name,
                _average_ms([sent.took_ms for sent in sends]),
                amount - len(errors),
                len(errors),
                int(time.time() * 1000),
            )
        )
    return rows


_PREFIX = "[MONITOR] "
_LINE = "=" * 41


@lazy_dataclass(frozen=True, slots=True)
class DeadMessages:
    """The dead letters of a group, which are in ``topic``."""

    group: str = field(metadata=named("consumerGroup"))
    topic: str
    messages: int = field(metadata=named("total"))


@lazy_dataclass(frozen=True, slots=True)
class BacklogRound:
    """The messages that each group has not consumed, and the dead letters of each group."""

    undone: Sequence[UndoneTopic]
    dead: Sequence[DeadMessages]


def _backlog_lines(found: BacklogRound) -> Iterator[str]:
    yield f"{_PREFIX}{_LINE}beginRound"
    for row in found.undone:
        members = {
            "consumerGroup": row.group,
            "topic": row.topic,
            "undoneMsgsTotal": row.waiting,
            "undoneMsgsSingleMQ": row.waiting_in_queue,
            "undoneMsgsDelayTimeMills": row.delay_ms,
        }
        yield f"{_PREFIX}reportUndoneMsgs: {java_object('UndoneMsgs', members)}"
    for one in found.dead:
        members = {
            "consumerGroup": one.group,
            "topic": one.topic,
            "failedMsgsTotalRecently": one.messages,
        }
        yield f"{_PREFIX}reportFailedMsgs: {java_object('FailedMsgs', members)}"
    yield f"{_PREFIX}{_LINE}endRound"


@command(
    "startMonitoring",
    option(
        "i",
        "interval",
        "time between two rounds",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        default=60.0,
        show_default=True,
    ),
)
async def start_monitoring(session: Session, interval: float) -> None:
    """Print the messages that each group has not consumed yet, and its dead letters, every minute until Ctrl-C.

    With --output json each round is one line.
    """
    await in_rounds(session, interval, lambda: _round(session), _backlog_lines)


async def _round(session: Session) -> BacklogRound:
    topics = sorted(await session.admin.topic_list())
    groups = [topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX)]
    progress = ProgressOfGroups()
    if groups:
        progress = await progress_of_groups(
            session.admin, on_problem=session.report_problem, on_progress=session.progress
        )
    if not progress.is_whole:
        groups = [group for group in groups if group in progress.stats]

    async def undone(group: str) -> list[UndoneTopic]:
        stats = progress.stats.get(group) or await session.admin.consume_stats(group)
        lags = {queue.topic for queue, one in stats.offset_table.items() if one.broker_offset > one.consumer_offset}
        return undone_of(group, stats, {topic: await session.admin.topic_stats(topic) for topic in sorted(lags)})

    async def dead(topic: str) -> DeadMessages:
        stats = await session.admin.topic_stats(topic)
        total = sum(one.max_offset - one.min_offset for one in stats.offset_table.values())
        return DeadMessages(topic.removeprefix(DLQ_PREFIX), topic, total)

    waiting = await session.each(groups, undone)
    lost = await session.each([topic for topic in topics if topic.startswith(DLQ_PREFIX)], dead)
    for name, error in (waiting.errors | lost.errors).items():
        # a group or topic that was deleted meanwhile
        if not isinstance(error, (BrokerError, RouteNotFound)):
            session.fail(error, name)
    return BacklogRound(
        [row for rows in waiting.values.values() for row in rows],
        [one for one in lost.values.values() if one.messages],
    )


FAMILIES = {
    "Statistics": (
        stats_all,
        send_msg_status,
        check_msg_send_rt,
        cluster_rt,
        start_monitoring,
    ),
}
