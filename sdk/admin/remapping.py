"""Which broker leads which logical queue of a static topic: plans. Pure.

`State` is what the brokers say, and the only memory: a command that was killed looks again and goes on. Its order is
RocketMQ's: a broker that gets a queue can write it first, with its logical offset undecided; then the broker that had
it refuses sends; then the offset is decided from where its queue ends, rounded up to a block; then all brokers get the
new epoch.
Neighbours: static_topics.py executes, remoting/protocol/logical_queues.py has the rules.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.logical_queues import LogicalQueue, check_stretches, logical_queues, to_logical
from skylark.remoting.protocol.requests.topics import LogicQueueMappingItem as Stretch
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicQueueMappingDetail

# RocketMQ's: the logical offsets of a queue that has moved begin at a multiple of it.
BLOCK = 10_000
# RocketMQ's tools raise epochs by this at least, which are times in ms else.
EPOCH_STEP = 1_000
_PERM = 6


@lazy_dataclass(frozen=True, slots=True)
class Part:
    """A broker's part in a static topic."""

    config: TopicConfig
    mapping: TopicQueueMappingDetail


@lazy_dataclass(frozen=True, slots=True)
class State:
    """A static topic: the parts by broker name. ``brokers``: all that a change must reach, with or without a part."""

    topic: str
    parts: Mapping[str, Part]
    brokers: Collection[str]

    @property
    def total(self) -> int:
        """How many logical queues there are. Those with higher numbers are left of a command that was killed."""
        return max((part.mapping.total_queues for part in self.parts.values()), default=0)

    @property
    def epoch(self) -> int:
        return max((part.mapping.epoch for part in self.parts.values()), default=0)

    @property
    def queues(self) -> dict[int, LogicalQueue]:
        """The logical queues, as their leaders see them."""
        return logical_queues(part.mapping for part in self.parts.values())

    @property
    def undecided(self) -> list[LogicalQueue]:
        """The queues that are on their way: their last stretches have no logical offset yet."""
        return [queue for queue in self.queues.values() if queue.leader.logic_offset < 0]

    def with_part(self, name: str, part: Part) -> "State":
        """The state in which broker ``name`` has ``part``."""
        return replace(self, parts={**self.parts, name: part})


def check(state: State) -> None:
    """Raise UserError when the topic is in a state that no command makes, also one that was killed.

    Each logical queue has a leader before the total counts it. So one without is led by a broker that is away.
    """
    headless = [str(number) for number in range(state.total) if number not in state.queues]
    if headless:
        raise UserError(
            f"no broker that the NameServer knows leads logical queues {', '.join(headless[:20])} of topic"
            f" {state.topic}: a broker is away. Run this again when it is back"
        )
    owners: dict[tuple[str, int], int] = {}
    for name, part in state.parts.items():
        if part.mapping.bname != name or part.mapping.dirty:
            raise UserError(f"broker {name} has a mapping of topic {state.topic} that is not its own, or is marked bad")
        for queue_id, stretches in part.mapping.hosted_queues.items():
            try:
                check_stretches(stretches)
            except ValueError as error:
                raise UserError(f"logical queue {queue_id} of topic {state.topic} on {name}: {error}") from None
    for queue in state.queues.values():
        for stretch in queue.stretches:
            owner = owners.setdefault((stretch.bname, stretch.queue_id), queue.queue_id)
            if owner != queue.queue_id:
                raise UserError(
                    f"logical queues {owner} and {queue.queue_id} of topic {state.topic} share queue"
                    f" {stretch.queue_id} of broker {stretch.bname}"
                )


def grown(state: State, targets: Collection[str], total: int, now_ms: int) -> State:
    """The state in which ``total`` logical queues are led, the new ones by those of ``targets`` that lead the fewest.

    The total is raised in a second step, by `levelled`: see `check`.
    """
    if total < state.total:
        raise UserError(
            f"topic {state.topic} has {state.total} logical queues, and a static topic does not get fewer: its keys"
            " would move"
        )
    queues = state.queues
    missing = [number for number in range(total) if number not in queues]
    epoch = _next_epoch(state, now_ms)
    led = Counter({name: 0 for name in targets})
    led.update(queue.leader.bname for queue in queues.values() if queue.leader.bname in led)
    for number in missing:
        name = min(led, key=lambda name: (led[name], name))
        led[name] += 1
        part = _part(state, name)
        stretch = Stretch(0, part.config.write_queue_nums, name, 0)
        part = _with_queue(part, number, [stretch])
        state = state.with_part(name, replace(part, mapping=replace(part.mapping, epoch=epoch)))
    return state


def levelled(state: State, total: int, epoch: int) -> State:
    """The state in which all brokers have the same number of logical queues and the same epoch."""
    for name in state.brokers:
        part = _part(state, name)
        state = state.with_part(name, replace(part, mapping=replace(part.mapping, total_queues=total, epoch=epoch)))
    return state


def moves(state: State, targets: Collection[str]) -> dict[int, str]:
    """The broker that each logical queue moves to, so that ``targets`` lead all and about as many each; the fewest."""
    queues = {number: queue for number, queue in state.queues.items() if number < state.total}
    if not targets:
        raise UserError("no broker takes logical queues")
    led = Counter(queue.leader.bname for queue in queues.values())
    # Those that lead the most keep one more.
    order = sorted(targets, key=lambda name: (-led[name], name))
    share, more = divmod(len(queues), len(order))
    room = {name: share + (number < more) for number, name in enumerate(order)}
    homeless = []
    for number, queue in queues.items():
        name = queue.leader.bname
        if room.get(name, 0) > 0:
            room[name] -= 1
        else:
            homeless.append(number)
    free = [name for name in order for _ in range(room[name])]
    return dict(zip(homeless, free, strict=True))


def begun(state: State, targets: Mapping[int, str], now_ms: int) -> State:
    """The state after the first step: the brokers ``targets`` can write the queues, which are undecided."""
    epoch = _next_epoch(state, now_ms)
    for number, name in targets.items():
        queue, part = state.queues[number], _part(state, name)
        stretch = Stretch(queue.leader.gen + 1, part.config.write_queue_nums, name, -1)
        changed = _with_queue(part, number, [*queue.stretches, stretch])
        total = max(state.total, changed.mapping.total_queues)
        mapping = replace(changed.mapping, epoch=epoch, total_queues=total)
        state = state.with_part(name, replace(changed, mapping=mapping))
    return state


def given_away(state: State) -> State:
    """The state after the second step: brokers whose queues are undecided elsewhere know, and refuse sends."""
    for queue in state.undecided:
        before = queue.stretches[-2]
        leader, part = state.parts[queue.leader.bname], _part(state, before.bname)
        known = part.mapping.hosted_queues.get(queue.queue_id)
        if known and known[-1].gen >= queue.leader.gen:
            continue  # it has been told, and perhaps also where the queue begins on its new broker
        hosted = {**part.mapping.hosted_queues, queue.queue_id: list(queue.stretches)}
        mapping = replace(part.mapping, hosted_queues=hosted, epoch=max(part.mapping.epoch, leader.mapping.epoch))
        state = state.with_part(before.bname, replace(part, mapping=mapping))
    return state


def decided(state: State, ends: Mapping[int, int]) -> State:
    """The state after the third step: where the queues begin on their new brokers.

    ``ends`` is where each undecided queue ends on its former broker, by logical number.
    """
    for queue in state.undecided:
        before, leader = queue.stretches[-2], queue.leader
        # A command that was killed may have told the former broker already: it stays as it was told.
        stretches = state.parts[before.bname].mapping.hosted_queues[queue.queue_id]
        if (stretches[-1].gen, stretches[-1].logic_offset >= 0) != (leader.gen, True):
            end = ends[queue.queue_id]
            closed = replace(before, end_offset=max(end, before.start_offset))
            begins = replace(leader, logic_offset=block_after(to_logical(before, end)))
            stretches = [*queue.stretches[:-2], closed, begins]
        for name in (leader.bname, before.bname):
            part = state.parts[name]
            hosted = {**part.mapping.hosted_queues, queue.queue_id: stretches}
            state = state.with_part(name, replace(part, mapping=replace(part.mapping, hosted_queues=hosted)))
    return state


def block_after(offset: int) -> int:
    """RocketMQ's first logical offset of a queue that has moved when it had ``offset`` messages."""
    blocks, more = divmod(offset, BLOCK)
    return (blocks + (1 if more < BLOCK // 2 else 2)) * BLOCK


def changed_parts(before: State, after: State) -> dict[str, Part]:
    """The parts that differ."""
    return {name: part for name, part in after.parts.items() if before.parts.get(name) != part}


def led(parts: Iterable[Part]) -> Counter[str]:
    """How many logical queues each broker leads."""
    return Counter(queue.leader.bname for queue in logical_queues(part.mapping for part in parts).values())


def _next_epoch(state: State, now_ms: int) -> int:
    return max(state.epoch + EPOCH_STEP, now_ms)


def _part(state: State, name: str) -> Part:
    """The broker's part; one without queues when it has none."""
    known = state.parts.get(name)
    if known is not None:
        return known
    scope = next((part.mapping.scope for part in state.parts.values()), "__global__")
    empty = TopicQueueMappingDetail(state.topic, scope, state.total, name, state.epoch)
    return Part(TopicConfig(state.topic, 0, 0, _PERM), empty)


def _with_queue(part: Part, number: int, stretches: list[Stretch]) -> Part:
    """The part with one more queue of the broker, which is the last stretch of a logical one."""
    count = part.config.write_queue_nums + 1
    config = replace(part.config, write_queue_nums=count, read_queue_nums=max(count, part.config.read_queue_nums + 1))
    return Part(config, replace(part.mapping, hosted_queues={**part.mapping.hosted_queues, number: stretches}))
