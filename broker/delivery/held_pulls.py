"""Long polling: pulls that found nothing wait here for a message or for their deadline.

A held pull is a row, not a task. Rows are indexed by queue and tag code, by connection and by deadline. So the cost of
a message, a closed connection or a tick grows with the pulls that it concerns, not with all held pulls. The number of
pulls answered in one turn of the event loop is bounded; `run` answers the rest.
Pulls wait for a queue by its name, since the queue may not exist yet: the first message makes it. A put checks one flag
of the queue, `is_awaited`. The flag is set in a new queue, cleared when a message comes for which no pull waits, and
set again by `hold`. In Controller mode a message counts as arrived when it is confirmed (unconfirmed.py).
Invariant: no message before ``_PullsOfQueue.seen`` of a queue has a tag that a pull held there waits for.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import TypeVar

import trio

from skylark.broker.delivery.unconfirmed import Unconfirmed
from skylark.broker.store.filter import Filter
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig

MAX_HELD = 100_000
# Tag codes of all held pulls together: about 100 bytes each.
MAX_CODES = 500_000
# The precision of deadlines, and the most ticks that a pull is held: ten minutes.
TICK_S = 0.1
MAX_TICKS = 6_000
# Pulls handled in one turn of the event loop: each costs about 20 µs.
SLICE = 500
# Entries of a queue that are searched for tags at a time; fewer than one read of a queue examines.
ENTRIES = 4_096

K = TypeVar("K")
# Topic and number.
QueueName = tuple[str, int]
TagCodes = frozenset[int]
Pulls = dict["HeldPull", None]


@lazy_dataclass(slots=True, eq=False)
class HeldPull:
    """A pull of messages from ``offset`` on that match ``wanted``, while messages are read and while it waits.

    ``retry(pull, last)`` answers if there are messages, or if ``last``, and returns whether it answered. It is one
    function for all pulls, with its data in fields here: a closure per pull would take three times the memory.
    """

    channel: Channel
    request: Command
    group: SubscriptionGroupConfig
    queue: QueueName
    offset: int
    wanted: Filter
    max_count: int
    max_bytes: int
    unwraps: bool
    #: How long the pull may wait for messages.
    suspend_ms: int
    retry: Callable[["HeldPull", bool], bool]
    #: Set when the pull begins to wait.
    deadline: float = 0.0
    tick: int = 0
    is_held: bool = False
    is_due: bool = False


@lazy_dataclass(slots=True, eq=False)
class _PullsOfQueue:
    """The held pulls of one queue. The queue's messages before ``seen`` were compared with the tags of the pulls."""

    queue: QueueName
    seen: int
    untagged: Pulls = field(default_factory=dict)
    by_tags: dict[TagCodes, Pulls] = field(default_factory=dict)
    by_code: dict[int, dict[TagCodes, None]] = field(default_factory=dict)

    def add(self, pull: HeldPull) -> None:
        codes = pull.wanted.tag_codes
        if codes is None:
            self.untagged[pull] = None
            return
        same = self.by_tags.get(codes)
        if same is None:
            same = self.by_tags[codes] = {}
            for code in codes:
                self.by_code.setdefault(code, {})[codes] = None
        same[pull] = None

    def remove(self, pull: HeldPull) -> None:
        codes = pull.wanted.tag_codes
        if codes is None:
            del self.untagged[pull]
            return
        same = self.by_tags[codes]
        del same[pull]
        if not same:
            del self.by_tags[codes]
            for code in codes:
                others = self.by_code[code]
                del others[codes]
                if not others:
                    del self.by_code[code]

    def with_any_of(self, codes: Iterable[int]) -> list[HeldPull]:
        """The pulls that want a message with one of these codes."""
        wanted: dict[TagCodes, None] = {}
        for code in codes:
            wanted.update(self.by_code.get(code, ()))
        return [pull for tags in wanted for pull in self.by_tags[tags]]

    @property
    def is_empty(self) -> bool:
        return not self.untagged and not self.by_tags

    def tagged(self) -> list[HeldPull]:
        return [pull for pulls in self.by_tags.values() for pull in pulls]


class HeldPulls:
    """All held pulls of a broker. Times are trio's, in seconds."""

    def __init__(self, unconfirmed: Unconfirmed | None = None) -> None:
        self._unconfirmed = unconfirmed
        self._by_queue: dict[QueueName, _PullsOfQueue] = {}
        self._by_channel: dict[Channel, Pulls] = {}
        self._by_tick: dict[int, Pulls] = {}
        # Pulls with deadlines before this tick were taken out already.
        self._next_tick = 0
        # (pull, last): to be handled in the next turns of the event loop.
        self._due: deque[tuple[HeldPull, bool]] = deque()
        self._wake = Signal()
        # Whether nothing waits, and `run` sleeps until something does.
        self._is_idle = False
        #: Other readers that wait: called with each queue that got messages; return whether they still wait.
        self.watchers: list[Callable[[ConsumeQueue], bool]] = []
        self._count = 0
        self._codes = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull, queue: ConsumeQueue | None) -> bool:
        """Keep ``pull``, which found nothing up to the end of ``queue``; False when too many wait already.

        ``queue`` is None when it does not exist yet.
        """
        codes = len(pull.wanted.tag_codes or ())
        if self._count >= MAX_HELD or self._codes + codes > MAX_CODES:
            return False
        # From now on the store reports messages that come into this queue (`MessageStore.arrived`). This runs in the
        # same turn of the loop as the read that found nothing, so no message is missed.
        end = 0
        if queue is not None:
            end, queue.is_awaited = queue.next_offset, True
            if self._unconfirmed is not None:
                end = self._unconfirmed.watch(queue)
        waiting = self._by_queue.get(pull.queue)
        if waiting is None:
            waiting = self._by_queue[pull.queue] = _PullsOfQueue(pull.queue, end)
        elif end < waiting.seen:
            # The topic was deleted and created again while other pulls waited.
            waiting.seen = end
        # Each request has its own copy of the name; share one.
        pull.queue = waiting.queue
        waiting.add(pull)
        if not self._by_tick:
            self._next_tick = int(trio.current_time() / TICK_S)
            if self._is_idle:
                self._wake.set()
        pull.tick = min(max(int(pull.deadline / TICK_S) + 1, self._next_tick), self._next_tick + MAX_TICKS)
        self._by_tick.setdefault(pull.tick, {})[pull] = None
        self._by_channel.setdefault(pull.channel, {})[pull] = None
        pull.is_held = True
        self._count += 1
        self._codes += codes
        return True

    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Messages came into ``queues``: answer the pulls that wait for them."""
        left = SLICE
        for queue in queues:
            waiting = self._by_queue.get((queue.topic, queue.queue_id))
            # Call all watchers, even if the first one still waits.
            is_watched = any([watch(queue) for watch in self.watchers])
            if waiting is None:
                queue.is_awaited = is_watched
                if is_watched and self._unconfirmed is not None:
                    self._unconfirmed.watch(queue)
                continue
            for pull in self._pulls_to_try(queue, waiting):
                if left:
                    left -= 1
                    self._try(pull, False)
                elif not pull.is_due:
                    pull.is_due = True
                    self._try_later(pull, False)

    def expire(self, now: float) -> bool:
        """Answer some pulls whose deadline has passed or that were postponed; returns whether there are more."""
        tick = int(now / TICK_S)
        if not self._by_tick:
            self._next_tick = tick + 1
        # Rows of a tick are due when the whole tick has passed, so no pull ends before its deadline.
        while self._next_tick <= tick:
            self._due.extend((pull, True) for pull in self._by_tick.get(self._next_tick, ()))
            self._next_tick += 1
        for _ in range(min(SLICE, len(self._due))):
            pull, last = self._due.popleft()
            pull.is_due = False
            if pull.is_held:
                self._try(pull, last)
        return bool(self._due)

    def drop(self, channel: Channel) -> None:
        """Forget the pulls of a closed channel."""
        for pull in list(self._by_channel.get(channel, ())):
            self._remove(pull)

    def release_group(self, queue: QueueName, group: str) -> None:
        """Answer the pulls of ``group`` that wait for ``queue``."""
        waiting = self._by_queue.get(queue)
        for pull in [*waiting.untagged, *waiting.tagged()] if waiting is not None else ():
            if pull.group.group_name == group:
                self._try_later(pull, True)

    def release(self) -> None:
        """Answer all pulls, some in each turn of the event loop: the broker stops, or its master is back."""
        for pulls in list(self._by_channel.values()):
            for pull in pulls:
                self._try_later(pull, True)
        self.expire(trio.current_time())

    async def run(self) -> None:
        """Answer pulls at their deadlines, and pulls that were too many for one turn, until cancelled."""
        while True:
            self._wake.clear()
            if self.expire(trio.current_time()):
                await trio.lowlevel.checkpoint()
            else:
                with trio.move_on_after(TICK_S):
                    await self._wake.wait()
                if not self._by_tick and not self._due:
                    self._is_idle = True
                    await self._wake.wait()
                    self._is_idle = False

    def _pulls_to_try(self, queue: ConsumeQueue, waiting: _PullsOfQueue) -> list[HeldPull]:
        """The pulls that messages from ``seen`` on may match. Pulls with tags are moved to their first such message."""
        end = queue.next_offset
        if self._unconfirmed is not None:
            end = self._unconfirmed.watch(queue)
            if end == waiting.seen:
                return []  # the new messages are still hidden
        found = list(waiting.untagged)
        # The queue of a slave may begin at any offset.
        seen = max(waiting.seen, queue.min_offset)
        waiting.seen = end
        if not waiting.by_tags:
            return found
        if seen > end or queue.is_batch:
            # The queue was created again, or cut; or its entries do not show the tags of all messages.
            return found + waiting.tagged()
        matching: Pulls = {}
        while seen < end:
            codes = [code for _, _, code in queue.entries(seen, min(ENTRIES, end - seen))]
            if not codes:
                break
            for pull in waiting.with_any_of(dict.fromkeys(codes)):
                if pull not in matching and not pull.is_due:
                    matching[pull] = None
                    # On a slave the pull may want older messages, which only the master has: do not skip them.
                    if pull.offset >= queue.min_offset:
                        pull.offset = max(pull.offset, seen)
            seen += len(codes)
        return found + list(matching)

    def _try(self, pull: HeldPull, last: bool) -> None:
        if pull.retry(pull, last) or last:
            self._remove(pull)

    def _try_later(self, pull: HeldPull, last: bool) -> None:
        self._due.append((pull, last))
        self._wake.set()

    def _remove(self, pull: HeldPull) -> None:
        pull.is_held = False
        waiting = self._by_queue[pull.queue]
        waiting.remove(pull)
        if waiting.is_empty:
            del self._by_queue[pull.queue]
        _take_out(self._by_channel, pull.channel, pull)
        _take_out(self._by_tick, pull.tick, pull)
        self._count -= 1
        self._codes -= len(pull.wanted.tag_codes or ())


def _take_out(table: dict[K, Pulls], key: K, pull: HeldPull) -> None:
    pulls = table[key]
    del pulls[pull]
    if not pulls:
        del table[key]
