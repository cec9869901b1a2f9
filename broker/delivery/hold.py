"""Long polling: pulls that found nothing wait here for a message, or for their time to be over.

A held pull is a row, not a task. Rows are indexed by queue and tag code, by connection and by deadline, so that a
message costs as much as the pulls that it may be for, a connection that closes as much as it had pulls, and a look at
the time as much as is over. What is answered in one turn of the loop is bounded; `run` answers the rest.
Pulls wait for a queue by its name, as it may not exist yet: only messages make queues. A put checks one flag of the
queue, `is_awaited`. It is set in a new queue, cleared when a message comes that nobody waits for, and set by `hold`.
Invariant: no message before ``_Waiting.seen`` of a queue has a tag that a pull held there waits for.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from broker.store.filter import Filter
from broker.store.queue.consumequeue import ConsumeQueue
from mqcommon.signal import Signal
from remoting.net.channel import Channel
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.command import Command

MAX_HELD = 100_000
# Tag codes of all held pulls together: some 100 bytes each.
MAX_CODES = 500_000
# How precisely deadlines are kept, and how many of these steps a pull is held at most: ten minutes.
TICK_S = 0.1
MAX_TICKS = 6_000
# Pulls that are looked at in one turn of the loop: each costs some 20 µs.
SLICE = 500
# Entries of a queue that are searched for tags in one go; less than one read of a queue looks at.
ENTRIES = 4_096

K = TypeVar("K")
# Topic and number.
QueueName = tuple[str, int]
TagCodes = frozenset[int]
Pulls = dict["HeldPull", None]


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits for messages from ``offset`` on that ``wanted`` lets pass.

    ``retry(pull, last)`` answers when there is something, or when ``last``; whether it answered. It is one function for
    all pulls, and what it needs are fields here: a closure for each would take three times the memory.
    """

    channel: Channel
    queue: QueueName
    deadline: float
    offset: int
    wanted: Filter
    retry: Callable[["HeldPull", bool], bool]
    request: Command
    group: SubscriptionGroupConfig
    max_count: int
    max_bytes: int
    tick: int = 0
    is_held: bool = False
    is_due: bool = False


@dataclass(slots=True, eq=False)
class _Waiting:
    """The held pulls of one queue, and up to where its messages were shown to those that want tags."""

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

    def __init__(self) -> None:
        self._by_queue: dict[QueueName, _Waiting] = {}
        self._by_channel: dict[Channel, Pulls] = {}
        self._by_tick: dict[int, Pulls] = {}
        # Pulls of deadlines before this tick were taken out already.
        self._next_tick = 0
        # (pull, last): what is to be looked at when the loop has had its turn.
        self._due: deque[tuple[HeldPull, bool]] = deque()
        self._wake = Signal()
        self._count = 0
        self._codes = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull, queue: ConsumeQueue | None) -> bool:
        """Keep ``pull``, which found nothing up to the end of ``queue``; False when too many wait already.

        None: no message ever came to the queue of this name.
        """
        codes = len(pull.wanted.tag_codes or ())
        if self._count >= MAX_HELD or self._codes + codes > MAX_CODES:
            return False
        end = 0
        if queue is not None:
            end, queue.is_awaited = queue.next_offset, True
        waiting = self._by_queue.get(pull.queue)
        if waiting is None:
            waiting = self._by_queue[pull.queue] = _Waiting(pull.queue, end)
        elif end < waiting.seen:
            # Others have waited since before the topic was deleted and made again.
            waiting.seen = end
        # Each request has a copy of the name; one is kept.
        pull.queue = waiting.queue
        waiting.add(pull)
        if not self._by_tick:
            self._next_tick = int(trio.current_time() / TICK_S)
        pull.tick = min(max(int(pull.deadline / TICK_S) + 1, self._next_tick), self._next_tick + MAX_TICKS)
        self._by_tick.setdefault(pull.tick, {})[pull] = None
        self._by_channel.setdefault(pull.channel, {})[pull] = None
        pull.is_held = True
        self._count += 1
        self._codes += codes
        return True

    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Messages came into ``queues``: answer the pulls that they are for."""
        left = SLICE
        for queue in queues:
            waiting = self._by_queue.get((queue.topic, queue.queue_id))
            if waiting is None:
                queue.is_awaited = False
                continue
            for pull in self._wanting(queue, waiting):
                if left:
                    left -= 1
                    self._look(pull, False)
                elif not pull.is_due:
                    pull.is_due = True
                    self._later(pull, False)

    def expire(self, now: float) -> bool:
        """Answer some of the pulls whose time is over, and some of what had to wait; whether there are more."""
        tick = int(now / TICK_S)
        if not self._by_tick:
            self._next_tick = tick + 1
        while self._next_tick <= tick:
            self._due.extend((pull, True) for pull in self._by_tick.get(self._next_tick, ()))
            self._next_tick += 1
        for _ in range(min(SLICE, len(self._due))):
            pull, last = self._due.popleft()
            pull.is_due = False
            if pull.is_held:
                self._look(pull, last)
        return bool(self._due)

    def drop(self, channel: Channel) -> None:
        """Forget the pulls of a channel that is gone."""
        for pull in list(self._by_channel.get(channel, ())):
            self._remove(pull)

    def release(self) -> None:
        """Answer all, some in each turn of the loop: the broker stops, or its master is back."""
        for pulls in list(self._by_channel.values()):
            for pull in pulls:
                self._later(pull, True)
        self.expire(trio.current_time())

    async def run(self) -> None:
        """Keep deadlines, and answer what had to wait, until cancelled."""
        while True:
            self._wake.clear()
            if self.expire(trio.current_time()):
                await trio.lowlevel.checkpoint()
            else:
                with trio.move_on_after(TICK_S):
                    await self._wake.wait()

    def _wanting(self, queue: ConsumeQueue, waiting: _Waiting) -> list[HeldPull]:
        """The pulls that the messages after ``seen`` may be for; those with tags are told where these begin."""
        found = list(waiting.untagged)
        # The queue of a slave may have begun anywhere since.
        seen, end = max(waiting.seen, queue.min_offset), queue.next_offset
        waiting.seen = end
        if not waiting.by_tags:
            return found
        if seen > end:
            # The queue was made anew, or cut.
            return found + waiting.tagged()
        told: Pulls = {}
        while seen < end:
            codes = [code for _, _, code in queue.entries(seen, min(ENTRIES, end - seen))]
            if not codes:
                break
            for pull in waiting.with_any_of(dict.fromkeys(codes)):
                if pull not in told and not pull.is_due:
                    told[pull] = None
                    # A slave may lack older messages that the pull wants, which the master has.
                    if pull.offset >= queue.min_offset:
                        pull.offset = max(pull.offset, seen)
            seen += len(codes)
        return found + list(told)

    def _look(self, pull: HeldPull, last: bool) -> None:
        if pull.retry(pull, last) or last:
            self._remove(pull)

    def _later(self, pull: HeldPull, last: bool) -> None:
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
