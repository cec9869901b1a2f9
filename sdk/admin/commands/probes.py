"""Commands that send test messages and print how long each took: to a broker, a topic, or all brokers."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from mqcommon.errors import SkylarkError, UserError
from sdk.admin.command import command
from sdk.admin.failures import explain
from sdk.admin.params import option, topic_option
from sdk.admin.reading import queue_text
from sdk.admin.render import Table, java_object, seconds_text
from sdk.admin.rounds import in_rounds
from sdk.admin.session import Session
from sdk.admin.targets import all_targets

if TYPE_CHECKING:
    from mqcommon.message.message import Message
    from mqcommon.message.queue import MessageQueue
    from sdk.producer.producer import Producer
    from sdk.producer.result import SendResult

FAMILY = "Statistics"
_GROUP = "TOOLS_PRODUCER"
_COUNT = click.IntRange(min=1)
_SIZE = click.IntRange(min=1)
_SENT = Table(
    (("#Broker Name", "brokerName"), ("#QID", "queueId"), ("#Send Result", "ok"), ("#RT", "rtMs")),
    "%-32s  %-4s  %-20s    %s",
)
_CLUSTER = Table(
    (
        ("#Cluster Name", "clusterName"),
        ("#Broker Name", "brokerName"),
        ("#RT", "rtText"),
        ("#successCount", "successCount"),
        ("#failCount", "failCount"),
    ),
    "%-24s  %-24s  %-8s  %-16s  %-16s",
    "%-24s  %-24s  %-4s  %-8s  %-8s",
)


def _body(size: int) -> bytes:
    return b"a" * size


def _average_ms(times_ms: Sequence[int]) -> float:
    """Without the first, which also opens connections."""
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
    """Send a message; with ``number`` to that queue, counted round the topic's queues."""
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


@command(
    "sendMsgStatus",
    option("b", "brokerName", "Broker Name", required=True),
    option("s", "messageSize", "Message Size", type=_SIZE, default=128, show_default=True),
    option("c", "count", "send message count", type=_COUNT, default=50, show_default=True),
)
async def send_msg_status(session: Session, broker_name: str, message_size: int, count: int) -> list[dict[str, Any]]:
    """Send messages to a broker's own topic, which has the broker's name, and print the result of each."""
    from mqcommon.message.message import Message

    known = sorted((await session.admin.cluster_info()).broker_addr_table)
    if broker_name not in known:  # a send would create a topic of that name
        raise UserError(f"there is no broker {broker_name}; the NameServer knows: {', '.join(known) or 'none'}")
    rows: list[dict[str, Any]] = []
    async with session.producer(_GROUP) as producer:
        # The first message also opens the connection.
        if (first := await _send(producer, Message(broker_name, _body(16)))).error is not None:
            raise first.error
        for _ in range(count):
            sent = await _send(producer, Message(broker_name, _body(message_size)))
            row: dict[str, Any] = {"rtMs": sent.took_ms, "sendStatus": None, "msgId": None, "error": None}
            if sent.result is not None:
                row |= {"sendStatus": sent.result.status.name, "msgId": sent.result.msg_id}
                session.say(f"rt={sent.took_ms}ms, SendResult={_result_text(sent.result)}")
            elif sent.error is not None:
                row["error"] = session.fail(sent.error, f"rt={sent.took_ms}ms")
            rows.append(row)
    return rows


@command(
    "checkMsgSendRT",
    topic_option(),
    option("a", "amount", "message amount", type=_COUNT, default=100, show_default=True),
    option("s", "size", "message size in bytes", type=_SIZE, default=128, show_default=True),
)
async def check_msg_send_rt(session: Session, topic: str, amount: int, size: int) -> dict[str, Any]:
    """Send messages to the queues of a topic in turn, and print how long each took."""
    from mqcommon.message.message import Message

    rows: list[dict[str, Any]] = []
    session.say(_SENT.head())
    async with session.producer(_GROUP) as producer:
        for number in range(amount):
            sent = await _send(producer, Message(topic, _body(size)), number)
            if sent.error is not None and sent.queue is None:
                raise sent.error  # there is no queue to send to
            row = {
                "brokerName": sent.queue.broker_name if sent.queue is not None else "",
                "queueId": sent.queue.queue_id if sent.queue is not None else -1,
                "ok": sent.error is None,
                "rtMs": sent.took_ms,
            }
            session.say(_SENT.row({**row, "ok": "true" if sent.error is None else "false"}))
            if sent.error is not None:
                row["error"] = session.fail(sent.error)
            rows.append(row)
    average = _average_ms([row["rtMs"] for row in rows])
    session.say(f"Avg RT: {average:.2f}")
    return {"topic": topic, "sends": rows, "avgRtMs": average}


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
    """Send messages to each broker, to the topic of its name, and print the mean time; repeat until Ctrl-C."""
    if not all_targets(await session.admin.cluster_info(), cluster):
        raise UserError("the NameServer knows no broker; see mqadmin clusterList")
    if not print_log:
        session.say(_CLUSTER.head())

    def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
        for row in rows:
            if print_log:
                mean = f"{row['rtMs']:.0f}"
                names = (row["clusterName"], row["brokerName"])
                yield "|".join((seconds_text(row["timestamp"]), machine_room, *names, mean))
            else:
                yield _CLUSTER.row({**row, "rtText": f"{row['rtMs']:.2f}"})

    async with session.producer(_GROUP) as producer:
        await in_rounds(session, interval, lambda: _probe(session, producer, cluster, amount, size), lines)


async def _probe(
    session: Session, producer: "Producer", cluster: str | None, amount: int, size: int
) -> list[dict[str, Any]]:
    from mqcommon.message.message import Message

    targets = all_targets(await session.admin.cluster_info(), cluster)
    names = list(dict.fromkeys((one.cluster, one.broker_name) for one in targets))
    rows = []
    for cluster_name, name in names:
        sends = [await _send(producer, Message(name, _body(size))) for _ in range(amount)]
        errors = [sent.error for sent in sends if sent.error is not None]
        if errors:
            session.warn(f"broker {name}: {explain(errors[0])}")
        rows.append(
            {
                "clusterName": cluster_name,
                "brokerName": name,
                "rtMs": _average_ms([sent.took_ms for sent in sends]),
                "successCount": amount - len(errors),
                "failCount": len(errors),
                "timestamp": int(time.time() * 1000),
            }
        )
    return rows


COMMANDS = (send_msg_status, check_msg_send_rt, cluster_rt)
