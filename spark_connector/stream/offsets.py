"""The offsets of a stream, as Spark keeps them in the checkpoint, and how many waiting messages are read. Pure.

The offsets are a flat dict: ``{"v": 1, "cluster": "DefaultCluster", "topic|broker|queue": 42}``; 42 is the next to
read. A queue that a stream finds later has no start in earlier offsets: the first offsets that name it also have
``"topic|broker|queue|from"``, where it begins. So does the first micro-batch, whose end has ``"first": true``: Spark
does not keep where a query started. ``|`` in names is written ``%7C``. ``"stamp@topic@broker"`` is the creation stamp
of the topic whose offsets these are, if its broker knows it: the queues of a topic that was deleted and made again are
begun anew. ``"tasks"`` is how many tasks read the micro-batch that ends here: it has as many when it is run again.
A limit is shared in proportion to the waiting messages (`shares`). If the limit allows, each queue gets at least one
message; otherwise the queues take turns.

Invariant (property-tested): however the ends of micro-batches are chosen, each message is in exactly one micro-batch.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.offsets import MADE_AGAIN, LostRange, OffsetRange, QueueBounds

VERSION = 1
_REMEDY = "use another checkpointLocation to start a new query"

Offsets = Mapping[MessageQueue, int]
#: Topic and broker.
TopicOnBroker = tuple[str, str]
Stamps = Mapping[TopicOnBroker, int]
_STAMP = "stamp@"


@dataclass(frozen=True)
class StreamOffsets:
    """Up to where each queue is read; ``began``: where the queues that are new in these offsets start.

    ``is_first``: the offsets are the end of the first micro-batch, in which all queues are new. ``stamps`` are the
    creation stamps of the topics.
    """

    cluster: str
    at: Offsets
    began: Offsets = field(default_factory=dict)
    is_first: bool = False
    stamps: Stamps = field(default_factory=dict)
    #: How many tasks read the micro-batch that ends here; 0 when it is not known.
    tasks: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The dict that Spark keeps. Spark compares texts, so the order of queues is always the same."""
        found: dict[str, Any] = {"v": VERSION, "cluster": self.cluster}
        if self.is_first:
            found["first"] = True
        if self.tasks:
            found["tasks"] = self.tasks
        for queue in sorted(self.at):
            found[_key(queue)] = self.at[queue]
        for queue in sorted(self.began):
            found[f"{_key(queue)}|from"] = self.began[queue]
        for topic, broker in sorted(self.stamps):
            found[f"{_STAMP}{_escaped(topic)}@{_escaped(broker)}"] = self.stamps[topic, broker]
        return found

    def stamp_of(self, queue: MessageQueue) -> int | None:
        """The creation stamp of the queue's topic, if it is known."""
        return self.stamps.get((queue.topic, queue.broker_name))

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "StreamOffsets":
        """The offsets in a checkpoint. UserError when another source, or a newer version of this source, wrote them."""
        version = found.get("v")
        if isinstance(version, int) and version > VERSION:
            raise UserError(
                f"the offsets in the checkpoint have version {version}, this Skylark knows {VERSION}; use the Skylark"
                " that wrote them, or a newer one"
            )
        at: dict[MessageQueue, int] = {}
        began: dict[MessageQueue, int] = {}
        stamps: dict[TopicOnBroker, int] = {}
        try:
            if version != VERSION:
                raise ValueError
            for key, offset in found.items():
                if "|" in key:
                    topic, broker, queue_id, *rest = key.split("|")
                    into = began if rest == ["from"] else at
                    into[MessageQueue(_plain(topic), _plain(broker), int(queue_id))] = int(offset)
                elif key.startswith(_STAMP):
                    # No name of a topic has this character.
                    topic, _, broker = key.removeprefix(_STAMP).partition("@")
                    stamps[_plain(topic), _plain(broker)] = int(offset)
            is_first, tasks = found.get("first") is True, int(found.get("tasks", 0))
            return cls(str(found["cluster"]), at, began, is_first, stamps, tasks)
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"the offsets in the checkpoint were not written by this source ({str(dict(found))[:200]}); {_REMEDY}"
            ) from None


def waiting(start: Offsets, seen: Mapping[MessageQueue, QueueBounds]) -> dict[MessageQueue, int]:
    """How many messages wait in each queue; all messages of a queue that is not in ``start`` wait."""
    return {queue: max(high - max(start.get(queue, low), low), 0) for queue, (low, high, _) in seen.items()}


def passed(start: Offsets, seen: Mapping[MessageQueue, QueueBounds]) -> int:
    """How many messages a stream at ``start`` cannot read: they are gone from the beginnings or ends of queues."""
    return sum(
        max(low - start[queue], start[queue] - high, 0) for queue, (low, high, _) in seen.items() if queue in start
    )


def made_again(start: StreamOffsets, seen: Mapping[MessageQueue, QueueBounds], stamps: Stamps) -> list[MessageQueue]:
    """The queues of ``start`` whose topics were deleted and made again since, so that the old offsets mean nothing.

    Without stamps, as from RocketMQ's brokers, there is one sign: the queue ends before the offset, and still has its
    first message. A stamp that is seen for the first time is no sign.
    """
    found = []
    for queue, (low, high, _) in seen.items():
        if queue in start.at:
            before, now = start.stamp_of(queue), stamps.get((queue.topic, queue.broker_name))
            is_other = low == 0 and high < start.at[queue] if before is None or now is None else before != now
            if is_other:
                found.append(queue)
    return found


def advanced(
    start: StreamOffsets,
    seen: Mapping[MessageQueue, QueueBounds],
    taken: Offsets,
    stamps: Stamps | None = None,
    again: Collection[MessageQueue] = (),
) -> StreamOffsets:
    """The offsets after ``taken`` messages of each queue. Queues that are not in ``seen`` stay where they are.

    ``again``: the queues that were made again, which begin anew. ``stamps``: the present stamps.

    Messages before a queue's minimum are skipped: their task finds that they are lost. In a queue that is shorter than
    before, the query goes on at the queue's end.
    """
    at, began = dict(start.at), {}
    for queue, (low, high, _) in seen.items():
        if queue not in at or queue in again:
            at[queue] = began[queue] = low
        # The minimum may have passed the position, as a broker deletes; the maximum may be before it, as after a loss.
        at[queue] = min(max(at[queue], low) + taken.get(queue, 0), high)
    # Equal offsets tell Spark that there is nothing new: no micro-batch is begun.
    if at == start.at and not again:
        return start
    here = {(queue.topic, queue.broker_name) for queue in seen}
    new = {place: stamp for place, stamp in (stamps or {}).items() if place in here}
    return StreamOffsets(start.cluster, at, began, stamps={**start.stamps, **new})


def first_end(start: StreamOffsets, end: StreamOffsets) -> StreamOffsets:
    """``end`` as the end of the first micro-batch, which begins at ``start``."""
    return replace(end, began={**start.at, **end.began}, is_first=True)


def between(start: StreamOffsets, end: StreamOffsets) -> tuple[list[OffsetRange], list[LostRange]]:
    """The ranges of a micro-batch, and the ranges that are missing at the ends of queues."""
    ranges: list[OffsetRange] = []
    lost: list[LostRange] = []
    for queue, stop in end.at.items():
        # A queue that is new in this micro-batch has its start in the offsets: asking again could give another answer
        # when the micro-batch is run again.
        first = end.began.get(queue, stop)
        if not end.is_first and _is_begun_anew(queue, start, end):
            is_known = start.stamp_of(queue) is not None and end.stamp_of(queue) is not None
            why = MADE_AGAIN if is_known else f"missing: the queue ends before that; {MADE_AGAIN}, or lost its end"
            reason = f"{why}: what it has now is read from offset {first} on"
            lost.append(LostRange(queue, start.at[queue], start.at[queue], reason))
        elif not end.is_first:
            first = start.at.get(queue, first)
        if first < stop:
            ranges.append(OffsetRange(queue, first, stop, end.stamp_of(queue)))
        elif first > stop:
            lost.append(LostRange(queue, stop, first, f"missing: the queue ends at {stop}, before the start"))
    return ranges, lost


def _is_begun_anew(queue: MessageQueue, start: StreamOffsets, end: StreamOffsets) -> bool:
    """Whether the queue was made again between these offsets."""
    if queue not in start.at or queue not in end.began:
        return False
    before, after = start.stamp_of(queue), end.stamp_of(queue)
    if before is not None and after is not None:
        return before != after
    return end.began[queue] == 0 and start.at[queue] > end.at[queue]


def check_cluster(start: StreamOffsets, clusters: Iterable[str], queues: Iterable[MessageQueue]) -> None:
    """Raise UserError when ``start`` is from another cluster than ``queues``."""
    # Names may be missing on either side, as while no broker is registered: only what both sides know is compared.
    here, there = set(clusters), set(filter(None, start.cluster.split(",")))
    if here and there and not here & there:
        raise UserError(
            f"the checkpoint is from cluster {start.cluster}, and the NameServers have {', '.join(sorted(here))};"
            f" give the NameServers of {start.cluster}, or {_REMEDY}"
        )
    brokers = {queue.broker_name for queue in queues}
    before = {queue.broker_name for queue in start.at}
    if brokers and before and not brokers & before:
        raise UserError(
            f"the checkpoint is from another cluster: it has offsets of brokers {', '.join(sorted(before))}, and the"
            f" topic is on {', '.join(sorted(brokers))}; give the NameServers of that cluster, or {_REMEDY}"
        )


def check_chosen(start: StreamOffsets, is_chosen: Callable[[MessageQueue], bool]) -> None:
    """Raise UserError when ``start`` has queues that the options do not choose."""
    others = sorted(queue for queue in start.at if not is_chosen(queue))
    if others:
        names = ", ".join(f"{topic} {broker} {queue}" for topic, broker, queue in others)
        raise UserError(
            f"the checkpoint has offsets of queues that the options do not choose: {names}; choose them, too,"
            f" or {_REMEDY}"
        )


def _key(queue: MessageQueue) -> str:
    return f"{_escaped(queue.topic)}|{_escaped(queue.broker_name)}|{queue.queue_id}"


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("|", "%7C")


def _plain(name: str) -> str:
    return name.replace("%7C", "|").replace("%25", "%")


Counts = Mapping[MessageQueue, int]


def shares(waiting: Counts, limit: int, turn: int) -> dict[MessageQueue, int]:
    """How many messages of each queue to read, ``limit`` together; if these are few, ``turn`` says whose turn it is."""
    queues = sorted(queue for queue, count in waiting.items() if count > 0)
    total = sum(waiting[queue] for queue in queues)
    if total <= limit:
        return {queue: waiting[queue] for queue in queues}
    # Fewer messages than queues: some queues get one, and the turn moves on with each micro-batch, so no queue starves.
    if limit < len(queues):
        return {queues[(turn + number) % len(queues)]: 1 for number in range(limit)}
    # One message for each queue, and the rest in proportion. The messages lost by rounding down go to the largest
    # remainders.
    rest, spare = total - len(queues), limit - len(queues)
    products = {queue: spare * (waiting[queue] - 1) for queue in queues}
    taken = {queue: 1 + product // rest for queue, product in products.items()}
    left = limit - sum(taken.values())
    for queue in sorted(queues, key=lambda queue: -(products[queue] % rest))[:left]:
        taken[queue] += 1
    return taken


def rows_in(max_bytes: int, waiting: Counts, mean_bytes: Mapping[MessageQueue, float]) -> int:
    """How many messages fit into ``max_bytes``, at least one, if each queue gives the same fraction."""
    total = sum(waiting.values())
    size = sum(count * mean_bytes[queue] for queue, count in waiting.items() if count)
    return total if size <= max_bytes else max(1, int(total * max_bytes / size))
