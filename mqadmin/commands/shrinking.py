"""Commands that make a cluster or a topic smaller, or spread a topic anew, without losing a message."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import broker_name, cluster_name, option, topic_option, where
from skylark.mqadmin.render import Table
from skylark.mqadmin.scope import Scope
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import BrokerError, RemotingError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID, is_dlq_topic, is_retry_topic, is_system_topic
from skylark.sdk.admin.failures import explain
from skylark.sdk.admin.order_records import NAMESPACE, PERM_WRITE, ordered_at, refuse_ordered
from skylark.sdk.admin.reports.report import FLAT, named
from skylark.sdk.admin.targets import Target, all_targets

if TYPE_CHECKING:
    from skylark.mqadmin.moving import Place
    from skylark.mqadmin.reshape import Patience
    from skylark.remoting.protocol.requests.shrinking import DrainStatus
    from skylark.sdk.admin.reshaping import Shape

# The code with which slaves refuse.
NOT_MASTER = 14
# Clients of RocketMQ learn of a change within 30 s.
SETTLE_S = 35.0
POLL_S = 0.5
# How long a drain goes on while servers do not answer: electing a new master takes less.
AWAY_S = 60.0
# Rows that a result lists.
SHOWN = 20


def _deadline_option() -> click.Option:
    return option(
        "",
        "deadline",
        "give up after this many seconds, with exit code 1; the command can be run again (default: wait for ever)",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        default=float("inf"),
    )


def _forget_option() -> click.Option:
    return option(
        "", "forgetGroup", "do not wait for this group; may be given several times", multiple=True, metavar="GROUP"
    )


def _move_option(help: str) -> click.Option:
    return option("", "move", help, type=bool, is_flag=True)


def _settle_option(help: str) -> click.Option:
    return option(
        "",
        "settle",
        f"{help}; clients of RocketMQ ask for routes every 30 s",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        default=SETTLE_S,
        show_default=True,
    )


def _broker_name() -> click.Option:
    return broker_name("broker name", required=True)


async def _members(session: Session, broker_name: str, *, must_have_master: bool = True) -> list[Target]:
    """The master and the slaves of a broker. UserError when ``must_have_master`` and the broker has none."""
    every = all_targets(await session.admin.cluster_info())
    members = [one for one in every if one.broker_name == broker_name]
    if must_have_master and not _master_of(members):
        known = ", ".join(sorted({one.broker_name for one in every})) or "none"
        raise UserError(f"there is no broker {broker_name!r} with a master; the NameServer knows: {known}")
    return members


def _master_of(members: list[Target]) -> str:
    """The address of the master among ``members``; empty when there is none."""
    return next((one.addr for one in members if one.broker_id == MASTER_ID), "")


async def _tell(session: Session, members: list[Target], *, drain: bool, settle_s: float = 0) -> None:
    # Begin a drain at the slaves and end with the master: once the master agrees, no new master of the set takes sends.
    # End a drain at the master first, as the master may refuse.
    for one in sorted(members, key=lambda one: one.broker_id, reverse=drain):
        try:
            await session.admin.drain_broker(one.addr, drain=drain, settle_ms=round(settle_s * 1000))
        except BrokerError as error:
            if not error.is_unknown_request:
                raise
            raise UserError(
                f"{one.broker_name} at {one.addr} is not a broker of Skylark, or an old one, and cannot be drained;"
                f" mqadmin wipeWritePerm -b {one.broker_name} stops new sends until the next restart"
            ) from None


@lazy_dataclass(frozen=True, slots=True)
class DrainReport:
    """The progress of a drain; ``moved`` is the number of messages that were copied."""

    broker_name: str
    is_drained: bool
    moved: int
    status: "DrainStatus" = field(metadata=FLAT)


def _drain_lines(result: DrainReport) -> Iterator[str]:
    table = Table(
        (("#Topic", "topic"), ("#QID", "queue_id"), ("#Group", "group"), ("#Left", "unread"), ("#Online", "is_online")),
        "%-40s %-5s %-40s %-12d %s",
    )
    if result.status.unread:
        yield from table.lines(result.status.unread[:SHOWN])
    for row in result.status.unclaimed[:SHOWN]:
        yield f"no group reads {row.topic}: {row.messages} messages (--move copies them to other brokers)"
    if result.is_drained:
        yield f"broker {result.broker_name} is drained: it can be stopped."


@command(
    "drain",
    _broker_name(),
    _move_option(
        "copy messages that no group has read to the same topics of other brokers, and wait for the others only"
    ),
    option(
        "",
        "force",
        "drain even if sends of some topics will fail: topics on this broker only, ordered or static topics",
        type=bool,
        is_flag=True,
    ),
    _forget_option(),
    _settle_option("how long the broker still takes sends of clients with old routes"),
    _deadline_option(),
    show=_drain_lines,
)
async def drain(
    session: Session,
    broker_name: str,
    move: bool,
    force: bool,
    forget_group: tuple[str, ...],
    settle: float,
    deadline: float,
) -> DrainReport:
    """Empty a broker before it is stopped for good.

    The broker takes no more sends, also after restarts, and consumers go on reading. The command ends when all groups
    have consumed everything, and all delayed, timed and popped messages and open transactions of the broker have ended.
    """
    work = _Drain(session, broker_name, move, forget_group, settle)
    await work.begin(force=force)
    status, failure = await work.until_empty(deadline)
    if failure:
        session.fail(UserError(failure))
    return DrainReport(broker_name, status.is_over and not failure, work.moved, status)


class _Drain:
    """The drain of one broker set, whichever member is the master."""

    def __init__(
        self, session: Session, broker_name: str, moves: bool, forgotten: tuple[str, ...], settle_s: float
    ) -> None:
        self._session = session
        self._broker_name = broker_name
        self._moves = moves
        self._forgotten = forgotten
        self._settle_s = settle_s
        #: The address of the master that was asked to drain.
        self._addr = ""
        #: Messages that were copied.
        self.moved = 0

    async def begin(self, *, force: bool) -> None:
        """Ask all members of the set to drain. UserError, and nothing is changed, when producers would fail."""
        # Slaves must drain, too: a slave that becomes the master must not take messages.
        members = await _members(self._session, self._broker_name)
        self._addr = _master_of(members)
        if not force:
            await _refuse_if_only_here(self._session, self._broker_name, self._addr)
        await _tell(self._session, members, drain=True, settle_s=self._settle_s)
        self._session.say(f"broker {self._broker_name} takes no new messages. Consumers read on.")

    async def until_empty(self, deadline_s: float) -> "tuple[DrainStatus, str]":
        """The last status, and why the broker is not empty; an empty text when the broker is empty."""
        import trio

        from skylark.remoting.protocol.requests.shrinking import DrainStatus

        started = trio.current_time()
        since: float | None = None  # since when servers do not answer
        status = DrainStatus()
        while True:
            trouble = ""
            try:
                status, is_done = await self._advance()
            except (RemotingError, BrokerError) as error:
                # While the set elects a master, no broker can answer: try again. Other refusals are permanent.
                if isinstance(error, BrokerError) and error.code != NOT_MASTER:
                    raise
                trouble = explain(error)
                since = trio.current_time() if since is None else since
            else:
                since = None
                if is_done:
                    return status, ""
                if not status.drained_since:
                    return status, f"broker {self._broker_name} takes messages again: somebody has undrained it"
            self._session.progress(trouble or _left(status))
            now = trio.current_time()
            if since is not None and (now - since >= AWAY_S or now - started >= deadline_s):
                return status, f"{trouble}. Broker {self._broker_name} stays drained: run this again to go on"
            if now - started >= deadline_s:
                return status, (
                    f"broker {self._broker_name} is not empty after {deadline_s:g} s: {_left(status)}. It stays"
                    " drained: run this again to go on, or mqadmin undrain"
                )
            await trio.sleep(POLL_S)

    async def _advance(self) -> "tuple[DrainStatus, bool]":
        """Copy the messages that can be copied. Returns the status after that, and whether the broker is empty."""
        await self._follow_master()
        status = await self._status()
        if status.is_over and not (self._moves and status.unclaimed):
            return status, True
        # Until then, clients with old routes still send.
        if self._moves and status.drained_since and not status.closes_in_ms and not status.sends_in_flight:
            before = self.moved
            await self._move_all(status)
            status = await self._status()
            # A status lists only some topics: while messages were copied, there may be more topics.
            return status, status.is_over and (self.moved == before or not status.unclaimed)
        return status, False

    async def _status(self) -> "DrainStatus":
        return await self._session.admin.drain_status(self._addr, self._forgotten)

    async def _follow_master(self) -> None:
        """Ask a new master to drain, if there is one: it may lack the former master's last changes."""
        members = await _members(self._session, self._broker_name, must_have_master=False)
        addr = _master_of(members)
        if addr and addr != self._addr:
            await _tell(self._session, members, drain=True, settle_s=self._settle_s)
            self._addr = addr
            self._session.say(f"{addr} is the master of broker {self._broker_name} now.")

    async def _move_all(self, status: "DrainStatus") -> None:
        """Copy the messages that no group has read, of all topics in ``status``, to other brokers."""
        from skylark.mqadmin.moving import move_queues

        # Topics with waiting groups first; no group waits for the other topics.
        topics = dict.fromkeys([row.topic for row in status.unread] + [row.topic for row in status.unclaimed])
        for topic in topics:
            # If no other broker takes the topic, its messages stay, and the drain waits for their groups.
            places = await _other_places(self._session, self._broker_name, topic)
            if places:
                await move_queues(self._session.admin, self._addr, topic, 0, places, self._count_copied)

    def _count_copied(self, messages: int) -> None:
        self.moved += messages
        self._session.progress(f"{self.moved:,} messages copied to other brokers")


def _left(status: "DrainStatus") -> str:
    """The text that says what keeps the broker from being empty."""
    counts = {
        "unread": status.unread_total,
        "delayed": status.delayed,
        "timed": status.timed,
        "half": status.half,
        "popped": status.popped,
        "in flight": status.sends_in_flight,
        "not copied yet (--move goes on)": status.unmoved,
    }
    words = [f"{count:,} {what}" for what, count in counts.items() if count]
    if status.closes_in_ms:
        words.append(f"sends of clients with old routes for {status.closes_in_ms / 1000:.0f} s more")
    absent = sorted({row.group for row in status.unread if row.group and not row.is_online})
    if absent:
        words.append(f"groups without a consumer: {', '.join(absent[:SHOWN])} (--forgetGroup leaves them out)")
    return ", ".join(words)


async def _refuse_if_only_here(session: Session, broker_name: str, addr: str) -> None:
    configs = (await session.admin.all_topic_config(addr)).topic_config_table
    own = set(await session.admin.system_topics_of_broker(addr))
    names = [
        name
        for name, config in configs.items()
        if config.perm & PERM_WRITE
        and name not in own
        and not (is_system_topic(name) or is_retry_topic(name) or is_dlq_topic(name))
    ]
    routes = await session.each(names, session.admin.topic_route)
    # Queues of a static topic are bound to their brokers: no other broker takes over by itself.
    led_here = [
        name
        for name, route in routes.values.items()
        if (part := (route.topic_queue_mapping_by_broker or {}).get(broker_name)) is not None and part.curr_id_map
    ]
    if led_here:
        raise UserError(
            f"{broker_name} leads queues of static topics: {', '.join(sorted(led_here)[:SHOWN])}. Their"
            " producers would fail. Move the queues to other brokers (mqadmin remappingStaticTopic), or give --force"
        )
    records = await session.admin.kv_list(NAMESPACE)
    refuse_ordered(ordered_at({name: configs[name] for name in names}, records, broker_name), broker_name)
    # A route that cannot be fetched is no reason to refuse: a drain can be undone.
    only_here = [
        name
        for name in names
        if name in routes.values
        and not any(
            queue.broker_name != broker_name and queue.perm & PERM_WRITE and queue.write_queue_nums
            for queue in routes.values[name].queue_datas
        )
    ]
    if only_here:
        raise UserError(
            f"{len(only_here)} topics can be written on {broker_name} only: {', '.join(sorted(only_here)[:SHOWN])}."
            " Their producers would fail. Create them on another broker (mqadmin updateTopic), end the drain of one"
            " that has them (mqadmin undrain), or give --force"
        )


async def _other_places(session: Session, broker_name: str, topic: str) -> "list[Place]":
    """The queues of ``topic`` on other brokers that take messages. A retry or dead-letter topic is created there."""
    from skylark.mqadmin.moving import Place

    others = {
        one.broker_name: one.addr
        for one in all_targets(await session.admin.cluster_info())
        if one.broker_name != broker_name and one.broker_id == MASTER_ID
    }
    # One queue a broker is enough for messages that a group gives back; brokers create such topics on demand.
    if is_retry_topic(topic) or is_dlq_topic(topic):
        return [Place(addr, 0) for addr in others.values() if not await _is_drained(session, addr)]
    route = await session.admin.topic_route(topic)
    if route.topic_queue_mapping_by_broker:
        return []  # its messages stay in their queues, and are read where they are
    return [
        Place(others[queue.broker_name], number)
        for queue in sorted(route.queue_datas, key=lambda queue: queue.broker_name)
        if queue.broker_name in others and queue.perm & PERM_WRITE
        for number in range(queue.write_queue_nums)
    ]


@lazy_dataclass(frozen=True, slots=True)
class UndrainReport:
    """A broker that takes messages again."""

    broker_name: str


@command("undrain", _broker_name())
async def undrain(session: Session, broker_name: str) -> UndrainReport:
    """Let a broker that was drained take messages again."""
    await _tell(session, await _members(session, broker_name), drain=False)
    session.say(f"broker {broker_name} takes messages again.")
    return UndrainReport(broker_name)


@lazy_dataclass(frozen=True, slots=True)
class PlannedShape:
    """The numbers of a topic's queues on a broker, before and after, and roughly how much is in the removed queues."""

    broker_name: str
    write: int
    read: int
    new_write: int
    new_read: int
    messages: int
    size_bytes: int = field(metadata=named("bytes"))


@lazy_dataclass(frozen=True, slots=True)
class ReshapeReport:
    """The change of a topic's queues, or with ``dry_run`` the plan; ``moved`` is the number of copied messages."""

    topic: str
    dry_run: bool
    plan: Sequence[PlannedShape]
    moved: int


def _plan_lines(result: ReshapeReport) -> Iterator[str]:
    if result.dry_run or not result.plan:
        yield from _PLAN.lines(result.plan)
    if not result.plan:
        yield f"topic {result.topic} has this shape already."
    elif not result.dry_run:
        yield f"done: topic {result.topic}, {result.moved} messages copied."


_PLAN = Table(
    (
        ("#Broker", "broker_name"),
        ("#Write", "write"),
        ("#Read", "read"),
        ("#NewWrite", "new_write"),
        ("#NewRead", "new_read"),
        ("#Messages", "messages"),
        ("#Bytes", "size_bytes"),
    ),
    "%-32s %-7d %-7d %-9d %-9d %-12d %d",
)


@command(
    "shrinkTopic",
    *where("shrink the topic on"),
    topic_option(),
    option("w", "writeQueueNums", "queues to write on each broker", type=click.IntRange(min=1), required=True),
    option(
        "r", "readQueueNums", "queues to read on each broker (default: as -w)", type=click.IntRange(min=1), default=None
    ),
    _move_option("copy messages that no group has read from the removed queues to the queues that stay"),
    _forget_option(),
    _settle_option("how long queues must get no message before they are closed"),
    _deadline_option(),
    option("", "dryRun", "show the plan and change nothing", type=bool, is_flag=True),
    show=_plan_lines,
)
async def shrink_topic(
    session: Session,
    scope: Scope,
    topic: str,
    write_queue_nums: int,
    read_queue_nums: int | None,
    move: bool,
    forget_group: tuple[str, ...],
    settle: float,
    deadline: float,
    dry_run: bool,
) -> ReshapeReport:
    """Give a topic fewer queues without losing a message.

    The removed queues are closed to producers, read to their ends by all groups, then closed to consumers. Their files
    go when their messages expire. A key may map to another queue afterwards, as the number of queues changes.
    """
    from skylark.mqadmin.reshape import Patience
    from skylark.sdk.admin.reshaping import Shape

    addrs = await _masters(session, scope)
    now = await _shapes(session, topic, addrs)
    target = Shape(write_queue_nums, write_queue_nums if read_queue_nums is None else read_queue_nums)
    # More read queues than write queues are fine; with fewer, consumers would not see some messages.
    if target.read < target.write:
        raise UserError(f"-r {target.read} is less than -w {target.write}: messages would come that nobody can read")
    growing = [name for name, shape in now.items() if shape.write < target.write or shape.read < target.read]
    if growing:
        raise UserError(
            f"topic {topic} has fewer queues than that on {', '.join(growing)} ({now[growing[0]]});"
            " mqadmin updateTopic gives it more"
        )
    patience = Patience(settle, deadline, forget_group, move)
    return await _reshape(session, topic, addrs, now, dict.fromkeys(now, target), patience, dry_run=dry_run)


@command(
    "rebalanceTopic",
    topic_option(),
    cluster_name("spread the topic over which cluster", required=True),
    option("w", "queueNums", "queues in all (default: as many as now)", type=click.IntRange(min=1), default=None),
    _move_option(
        "copy messages that no group has read from the removed queues to the queues that stay on the same broker"
    ),
    _forget_option(),
    _settle_option("how long queues must get no message before they are closed"),
    _deadline_option(),
    option("", "dryRun", "show the plan and change nothing", type=bool, is_flag=True),
    show=_plan_lines,
)
async def rebalance_topic(
    session: Session,
    topic: str,
    cluster_name: str,
    queue_nums: int | None,
    move: bool,
    forget_group: tuple[str, ...],
    settle: float,
    deadline: float,
    dry_run: bool,
) -> ReshapeReport:
    """Spread the queues of a topic evenly over the brokers of a cluster that take messages.

    New queues can be used at once; removed queues are read to their ends first, as in shrinkTopic.
    """
    from skylark.mqadmin.reshape import Patience
    from skylark.sdk.admin.reshaping import spread

    addrs = await _masters(session, Scope(None, cluster_name))
    drained = {name for name, addr in addrs.items() if await _is_drained(session, addr)}
    now = await _shapes(session, topic, addrs)
    brokers = [name for name in addrs if name not in drained]
    total = queue_nums or sum(shape.write for name, shape in now.items() if name not in drained)
    target = spread({name: shape for name, shape in now.items() if name not in drained}, brokers, total)
    patience = Patience(settle, deadline, forget_group, move)
    return await _reshape(session, topic, addrs, now, target, patience, dry_run=dry_run)


async def _masters(session: Session, scope: Scope) -> dict[str, str]:
    """Broker name → address, for the masters that -b or -c choose."""
    targets = all_targets(await session.admin.cluster_info(), scope.cluster_name)
    found = {
        one.broker_name: one.addr
        for one in targets
        if one.broker_id == MASTER_ID and scope.broker_addr in (None, one.addr)
    }
    if not found:
        raise UserError("there is no such master; see mqadmin clusterList")
    return found


async def _shapes(session: Session, topic: str, addrs: Mapping[str, str]) -> "dict[str, Shape]":
    """The topic's shape on the brokers that have it; UserError when no broker has it, or its queues are fixed."""
    from skylark.mqadmin.reshape import shape_of
    from skylark.sdk.admin.topic_changes import config_at

    found = {name: await config_at(session.admin, addr, topic) for name, addr in addrs.items()}
    shapes = {name: shape_of(config) for name, config in found.items() if config is not None}
    if any([await _is_static(session, addrs[name], topic) for name in shapes]):
        raise UserError(
            f"topic {topic} is static: it has a fixed number of queues, which mqadmin remappingStaticTopic moves"
        )
    if not shapes:
        raise UserError(f"there is no topic {topic} on {', '.join(addrs)}: check its name with mqadmin topicList")
    ordered = any(config.order for config in found.values() if config is not None)
    if ordered or await session.admin.get_kv(NAMESPACE, topic):
        raise UserError(
            f"topic {topic} is ordered: its producers count on a fixed number of queues. Make a new topic, or end the"
            f" order first (mqadmin updateTopic -o false, mqadmin updateOrderConf -m delete -t {topic})"
        )
    return shapes


async def _is_static(session: Session, addr: str, topic: str) -> bool:
    try:
        return (await session.admin.static_topic(addr, topic)).mapping_detail is not None
    except BrokerError as error:
        if not error.is_unknown_request:
            raise
        return False


async def _is_drained(session: Session, addr: str) -> bool:
    try:
        return (await session.admin.drain_status(addr)).drained_since > 0
    except BrokerError as error:
        if not error.is_unknown_request:
            raise
        return False


async def _reshape(
    session: Session,
    topic: str,
    addrs: Mapping[str, str],
    now: "Mapping[str, Shape]",
    target: "Mapping[str, Shape]",
    patience: "Patience",
    *,
    dry_run: bool,
) -> ReshapeReport:
    from skylark.mqadmin.reshape import Reshape
    from skylark.sdk.admin.reshaping import changes

    plan = [
        PlannedShape(
            name,
            before.write,
            before.read,
            after.write,
            after.read,
            *await _weight(session, name, addrs[name], topic, after.read, before.read),
        )
        for name, (before, after) in sorted(changes(now, target).items())
    ]
    work = Reshape(session, topic, addrs, target, patience)
    if not dry_run:
        for line in _PLAN.lines(plan) if plan else ():
            session.say(line)
        await work.run()
    return ReshapeReport(topic, dry_run, plan, work.moved)


async def _weight(session: Session, name: str, addr: str, topic: str, first: int, end: int) -> tuple[int, int]:
    """Estimated messages and bytes in the queues from ``first`` on, if each message is as large as its queue's last."""
    from skylark.mqcommon.message.queue import MessageQueue

    messages = size = 0
    for number in range(first, end):
        queue = MessageQueue(topic, name, number)
        high = await session.admin.max_offset(queue)
        count = high - await session.admin.min_offset(queue)
        if count > 0:
            last = (await session.admin.query_consume_queue(addr, topic, number, high - 1, 1)).queue_data
            messages += count
            size += count * (last[0].physic_size if last else 0)
    return messages, size


FAMILIES = {"Growing and shrinking": (drain, undrain, shrink_topic, rebalance_topic)}
