"""A copy of a topic: its plan, the offset where it goes on, the check of the result; and the copy of one queue.

Every copied message has a property that names its origin. So an interrupted copy finds in the target queue itself which
messages were copied, and the progress directory needs only the plan. The digest of a queue covers keys, properties and
bodies in their order, and is made alike on both sides. `copy_queue` runs in a Spark task. It sends one message after
another, the next when the last is acknowledged, so that their order is kept. A send whose result is not known fails the
task; Spark runs it again. Invariant (property-tested): however often a copy is interrupted, the target gets every
message once and in order.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol
from zlib import crc32

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.message import Message, MessageExt, OwnKeyMessage
from skylark.mqcommon.message.properties import DELAY, UNIQ_KEY, encode_properties
from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.options.connection import ConnectionOptions

ORIGIN = "COPY_ORIGIN"
# Properties of brokers and clients for one delivery; in a copy they would delay a message again, or make it a
# transaction.
_NOT_COPIED = frozenset(
    {
        *(UNIQ_KEY, DELAY, ORIGIN, "CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT", "MIN_OFFSET", "MAX_OFFSET"),
        *("TRAN_MSG", "PGROUP", "__transactionId__", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"),
        *("TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "__CRC32#", "ARRIVE_TIME"),
        *("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"),
    }
)


class Origin(NamedTuple):
    """Where a copied message came from."""

    broker: str
    queue_id: int
    offset: int
    born_ms: int

    def text(self) -> str:
        return f"{self.broker}:{self.queue_id}:{self.offset}:{self.born_ms}"


class Digest(NamedTuple):
    """How many messages, and the CRC of all of them in their order."""

    messages: int = 0
    crc: int = 0

    def add(self, key: str, properties: Mapping[str, str], body: bytes, flag: int) -> "Digest":
        """The digest with one more message."""
        head = f"{key}\x02{encode_properties(copied_properties(properties))}\x02{flag}\x02{len(body)}\x02"
        return Digest(self.messages + 1, crc32(body, crc32(head.encode(), self.crc)))


class Bounds(NamedTuple):
    """Offsets of a queue: of its first message, and after its last."""

    start: int
    end: int


@dataclass(frozen=True)
class QueueCopy:
    """One queue to copy: offsets ``[start, end)`` of the source, to the target queue from ``target_start`` on."""

    source: MessageQueue
    start: int
    end: int
    target: MessageQueue
    target_start: int


@dataclass(frozen=True)
class QueueResult:
    """One queue that was copied and compared."""

    source: str
    target: str
    copied: int
    source_count: int
    target_count: int
    source_crc: int
    target_crc: int

    @property
    def is_right(self) -> bool:
        return (self.source_count, self.source_crc) == (self.target_count, self.target_crc)


def copied_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that a copy keeps: the user's, tags and keys among them."""
    return {name: value for name, value in properties.items() if name not in _NOT_COPIED}


def origin_of(properties: Mapping[str, str]) -> Origin | None:
    """Where a message was copied from; None: it is not a copy."""
    # From the right: the name of a broker may have colons.
    parts = properties.get(ORIGIN, "").rsplit(":", 3)
    if len(parts) != 4 or not all(part.isdecimal() for part in parts[1:]):
        return None
    return Origin(parts[0], int(parts[1]), int(parts[2]), int(parts[3]))


def grown(
    before: Sequence[QueueCopy], sources: Mapping[MessageQueue, Bounds], targets: Mapping[MessageQueue, Bounds]
) -> list[QueueCopy]:
    """The plan ``before``, unchanged, and copies of the source queues that it lacks, to target queues of their own."""
    planned, taken = {one.source for one in before}, {one.target for one in before}
    new = [queue for queue in sources if queue not in planned]
    free = [queue for queue in targets if queue not in taken]
    if len(free) < len(new):
        raise UserError(
            f"the source has {len(planned) + len(new)} queues, the target {len(taken) + len(free)}: order can only be"
            " kept with as many; create the target topic with more (mqadmin updateTopic -r N -w N)"
        )
    # Sorted on both sides, so that a run that starts again makes the same pairs.
    pairs = zip(sorted(new), sorted(free), strict=False)
    return [*before, *(QueueCopy(one, *sources[one], two, targets[two].end) for one, two in pairs)]


def goes_on_at(copy: QueueCopy, found: Iterable[Origin | None]) -> int:
    """The source offset of the first message that is missing, by the origins in the target queue."""
    # The target queue may have other messages, and copies of other queues: only copies of this queue count.
    ours = (o.offset + 1 for o in found if o is not None and o[:2] == (copy.source.broker_name, copy.source.queue_id))
    return max(copy.start, max((offset for offset in ours if offset <= copy.end), default=copy.start))


def plan_text(what: Mapping[str, str], copies: Sequence[QueueCopy]) -> str:
    """The plan as JSON, for the progress directory."""
    return json.dumps({"v": 1, **what, "queues": [asdict(copy) for copy in copies]}, indent=1)


def read_plan(text: str, what: Mapping[str, str]) -> list[QueueCopy]:
    """The plan of `plan_text`; UserError when it is of another copy."""
    try:
        tree = json.loads(text)
        before = {name: tree[name] for name in what}
        copies = [
            QueueCopy(
                MessageQueue(*one["source"]),
                one["start"],
                one["end"],
                MessageQueue(*one["target"]),
                one["target_start"],
            )
            for one in tree["queues"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"the plan in the progress directory cannot be read: {error!r}; choose an empty one") from None
    if before != dict(what):
        changed = ", ".join(f"{name} {before[name]}" for name in what if before[name] != what[name])
        raise UserError(f"the progress directory is of another copy ({changed}); give each copy a directory of its own")
    return copies


GROUP = "spark-copy-topic"


class Reader(Protocol):
    """The methods of ``skylark.blocking.PullConsumer`` that a copy uses."""

    def max_offset(self, mq: MessageQueue) -> int: ...
    def messages(self, mq: MessageQueue, start: int, end: int) -> Iterable[MessageExt]: ...


class Sender(Protocol):
    """The methods of ``skylark.blocking.Producer`` that a copy uses."""

    def send(self, message: Message, *, queue: MessageQueue) -> object: ...


def run_copy(copy: QueueCopy, source: ConnectionOptions, target: ConnectionOptions) -> QueueResult:
    """Runs in the task: open clients of both clusters, copy, compare."""
    from skylark.sdk.blocking import Client, Producer, PullConsumer

    with ExitStack() as stack:
        ours = stack.enter_context(Client(**source.client))
        theirs = stack.enter_context(Client(**target.client))
        reader = stack.enter_context(PullConsumer(ours, group=GROUP, heartbeat=False))
        written = stack.enter_context(PullConsumer(theirs, group=GROUP, heartbeat=False))
        # A retry could store a message twice, or after its successor: the task fails instead, and its next run reads
        # the target queue again. A message without its copy on a slave counts as stored: failing for it would end the
        # job whenever a slave is restarted.
        producer = stack.enter_context(Producer(theirs, group=GROUP, retries=0, accept_weaker=True))
        return copy_queue(copy, reader, written, producer)


def copy_queue(copy: QueueCopy, reader: Reader, written: Reader, producer: Sender) -> QueueResult:
    """Send what the target queue lacks, then compare both."""
    copied = 0
    # The target itself says how far an earlier run came: its last copied message is the last acknowledged one, or one
    # later.
    there = written.messages(copy.target, copy.target_start, written.max_offset(copy.target))
    for message in reader.messages(
        copy.source, goes_on_at(copy, (origin_of(one.properties) for one in there)), copy.end
    ):
        producer.send(copy_of(message, copy.target.topic), queue=copy.target)
        copied += 1
    # Both queues are read again from the start, also the messages that an earlier run has copied.
    source = target = Digest()
    for message in reader.messages(copy.source, copy.start, copy.end):
        source = source.add(message.msg_id, message.properties, message.body, message.flag)
    for message in written.messages(copy.target, copy.target_start, written.max_offset(copy.target)):
        origin = origin_of(message.properties)
        is_ours = origin is not None and origin[:2] == (copy.source.broker_name, copy.source.queue_id)
        if is_ours:
            target = target.add(message.msg_id, message.properties, message.body, message.flag)
    counts = source.messages, target.messages, source.crc, target.crc
    return QueueResult(_name(copy.source), _name(copy.target), copied, *counts)


def copy_of(message: MessageExt, topic: str) -> Message:
    """The message to send: the same, and its origin. A copy of a copy names the queue that it was copied from last."""
    copy = OwnKeyMessage(topic, message.body, unique_key=message.msg_id, flag=message.flag)
    origin = Origin(message.broker_name, message.queue_id, message.queue_offset, message.born_timestamp)
    copy.properties = {**copied_properties(message.properties), ORIGIN: origin.text()}
    return copy


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue.broker_name} {queue.queue_id}"
