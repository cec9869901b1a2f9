"""Why a group lags, as sentences for people, the most certain first. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqconsole.showing.texts import count, duration
from skylark.mqconsole.showing.work import Work
from skylark.mqconsole.watching.history import Run

#: The time over which a trend is measured, and the least change of the lag that counts as a trend.
TREND_S: Final = 300
_CHANGE: Final = 0.1
#: A queue with more than this part of the lag is named.
_MOST: Final = 0.8


class LaggingQueue(Protocol):
    """The progress of a group in one queue: the SDK's ``QueueProgress``, or a similar object."""

    @property
    def topic(self) -> str: ...

    @property
    def broker_name(self) -> str: ...

    @property
    def queue_id(self) -> int: ...

    @property
    def lag(self) -> int: ...

    @property
    def client_ip(self) -> str | None: ...


@lazy_dataclass(frozen=True, slots=True)
class GroupState:
    """The known facts about a group. ``runs`` is its lag over time."""

    #: None when it is not known.
    members: int | None
    #: Messages a second; None when it is not known.
    consumed_per_s: float | None
    is_paused: bool
    queues: Sequence[LaggingQueue]
    runs: Sequence[Run]
    now_s: int
    #: The work of all members; None when it is not known.
    work: Work | None = None


def reasons(state: GroupState) -> Iterator[str]:
    """Sentences, the most likely reason first; none when the group does not lag."""
    late = [row for row in state.queues if row.lag > 0]
    if not late:
        return
    if state.is_paused:
        yield "Its settings say that it consumes nothing (consumeEnable=false)."
    if state.members == 0:
        yield "No consumer is connected."
    elif state.members is not None and state.consumed_per_s == 0:
        connected = "One consumer is" if state.members == 1 else f"{state.members} consumers are"
        yield f"{connected} connected, but nothing was consumed in the last minute: look at the consumers' logs."
    slow = list(_slow_handlers(state, late))
    yield from slow
    yield from _one_queue(late)
    yield from _without_owner(state, late)
    yield from _trend(state, is_explained=bool(slow))


def _slow_handlers(state: GroupState, late: Sequence[LaggingQueue]) -> Iterator[str]:
    """Messages were pulled, and wait in members' memory for a handler: more pulls would not help."""
    work = state.work
    if work is None:
        return
    if work.failed_per_s > 0:
        yield f"Handlers fail {count(work.failed_per_s)} times a second, and failed messages come back later."
    lag = sum(row.lag for row in late)
    # Members may count consumed messages as in memory until the whole pull is consumed; trust the offset.
    cached = sum(min(work.cached.get((row.topic, row.broker_name, row.queue_id), 0), row.lag) for row in late)
    # Messages that handlers finish within a second are no reason for a lag.
    if cached <= work.consumed_per_s:
        return
    where = "All" if cached >= lag else "Nearly all" if cached > _MOST * lag else count(cached)
    rest = "" if cached > _MOST * lag else "; the others are pulled when there is room"
    pace = f"{count(work.consumed_per_s)} a second are consumed"
    if work.handler_ms is not None:
        pace += f", at {duration(work.handler_ms)} a call of the handler"
    yield f"{where} of it waits in the members' memory for a handler{rest}. {pace}: {_advice(state, work)}."


def _advice(state: GroupState, work: Work) -> str:
    """Advice to speed handlers up. A member without a queue is idle, and an ordered queue has one handler at a time."""
    is_full = state.members is not None and state.members >= len(state.queues)
    members = "queues and members" if is_full else "members"
    return f"add {members}" if work.is_orderly else f"add concurrency or {members}"


def _one_queue(late: Sequence[LaggingQueue]) -> Iterator[str]:
    worst, total = max(late, key=lambda row: row.lag), sum(row.lag for row in late)
    # Often all messages have the same key, or one consumer hangs.
    if len(late) > 1 and worst.lag > _MOST * total:
        place = f"queue {worst.queue_id} of {worst.topic} on {worst.broker_name}"
        whose = f", which {worst.client_ip} consumes" if worst.client_ip else ""
        yield f"Nearly all of it is in one queue: {place}{whose}."


def _without_owner(state: GroupState, late: Sequence[LaggingQueue]) -> Iterator[str]:
    # If no queue has an owner, the members are unknown, which is no finding.
    idle = [row for row in late if not row.client_ip]
    if state.members and idle and len(idle) < len(late):
        yield f"{len(idle)} of the {len(late)} queues that lag have no consumer."


def _trend(state: GroupState, *, is_explained: bool) -> Iterator[str]:
    runs = [run for run in state.runs if run.last_s >= state.now_s - TREND_S]
    if len(runs) < 2:
        return
    # The first run may have begun earlier; its value was still valid at the beginning of this time.
    began_s = max(runs[0].first_s, state.now_s - TREND_S)
    took_s = max(runs[-1].last_s - began_s, 1)
    change = runs[-1].value - runs[0].value
    if abs(change) <= _CHANGE * max(runs[0].value, 1) or took_s < 30:
        return
    a_minute = abs(change) * 60 / took_s
    if change > 0:
        why = "" if is_explained else ": more comes in than is consumed"
        yield f"The lag grows by {count(a_minute)} messages a minute{why}."
    else:
        left_ms = runs[-1].value / a_minute * 60_000
        yield f"The lag shrinks by {count(a_minute)} messages a minute: it is gone in {duration(left_ms)} at this rate."
