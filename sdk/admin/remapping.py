"""Which broker leads which logical queue of a static topic: plans. Pure.

`State`, the brokers' answers, is the only memory: a command after a kill reads it again and goes on. The order of steps
is RocketMQ's: first the new broker of a queue takes sends, with the logical offset undecided; then the former broker
refuses sends; then the logical offset is decided: the end of the former queue, rounded up to a block; then all brokers
get the new epoch.
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

# RocketMQ's: the logical offsets of a queue that has moved begin at a multiple of this number.
BLOCK = 10_000
# RocketMQ's tools raise epochs by at least this number; otherwise an epoch is the time in ms.
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
        """The number of logical queues. Queues with higher numbers are left over from a killed command."""
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
        """The queues that are being moved: their last stretches have no logical offset yet."""
        return [queue for queue in self.queues.values() if queue.leader.logic_offset < 0]

    def with_part(self, name: str, part: Part) -> "State":
        """The state in which broker ``name`` has ``part``."""
        return replace(self, parts={**self.parts, name: part})


def check(state: State) -> None:
    """Raise UserError when the topic is in a state that no command leaves, not even a killed command.

    Each logical queue has a leader before the total counts it. So a queue without a leader has its leader on a broker
    that is away.
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
    """The state with ``total`` logical queues; the ``targets`` that lead the fewest queues lead the new ones.

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
    """The state in which all brokers have ``total`` as the number of logical queues, and the same ``epoch``."""
    for name in state.brokers:
        part = _part(state, name)
        state = state.with_part(name, replace(part, mapping=replace(part.mapping, total_queues=total, epoch=epoch)))
    return state


def moves(state: State, targets: Collection[str]) -> dict[int, str]:
    """Logical queue → its new broker: the fewest moves after which ``targets`` lead all queues, evenly."""
    queues = {number: queue for number, queue in state.queues.items() if number < state.total}
    if not targets:
        raise UserError("no broker takes logical queues")
    led = Counter(queue.leader.bname for queue in queues.values())
    # The brokers that lead the most queues keep one more.
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
    """The state after the second step: former brokers know of the undecided queues, and refuse sends."""
    for queue in state.undecided:
        before = queue.stretches[-2]
        leader, part = state.parts[queue.leader.bname], _part(state, before.bname)
        known = part.mapping.hosted_queues.get(queue.queue_id)
        if known and known[-1].gen >= queue.leader.gen:
            continue  # the former broker already knows, perhaps even the logical offset
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
        # A killed command may have sent the former broker its decision already: keep this decision.
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
    """The first logical offset, by RocketMQ's rule, of a queue that moved when it ended at ``offset``."""
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
    """The part with one more queue of the broker, as the last stretch of a logical queue."""
    count = part.config.write_queue_nums + 1
    config = replace(part.config, write_queue_nums=count, read_queue_nums=max(count, part.config.read_queue_nums + 1))
    return Part(config, replace(part.mapping, hosted_queues={**part.mapping.hosted_queues, number: stretches}))
