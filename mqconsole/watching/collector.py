"""The task that asks all brokers, once for all visitors.

A round asks the NameServers for the brokers, and all brokers at once, each with its own deadline; a broker that does
not answer by then gets a row that says so. Lags are asked of the master of each set (or of the lowest slave that
answers), topics and settings less often. A broker whose answers take long is asked less often: all questions together
keep a broker busy for at most a twentieth of the time.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import trio

from skylark import Admin
from skylark.mqcommon.clock import Clock, SystemClock
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqconsole.watching.history import History
from skylark.mqconsole.watching.pace import Pace
from skylark.mqconsole.watching.roll import Roll
from skylark.mqconsole.watching.snapshot import (
    Found,
    SetProgress,
    SetTables,
    Shape,
    Snapshot,
    progress_of,
    snapshot_of,
    tables_of,
)
from skylark.sdk.admin.failures import explain
from skylark.sdk.admin.targets import Target, all_targets
from skylark.sdk.runtime import survived

logger = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

#: Topics, groups and settings are asked for after this time, and after each change that the console makes.
TABLES_INTERVAL_S: Final = 60.0
#: A broker is asked again no sooner than this many times the duration of its last answers.
PATIENCE: Final = 20.0
#: With more topics and lags than this, rows are made in a thread: the event loop would be blocked for too long.
MOST_ON_LOOP: Final = 2_000
#: The next round begins no sooner than this many times the time for making the last rows, so that pages of a very
#: large cluster still get the processor.
BUILD_PATIENCE: Final = 4.0
#: The most series of the history; see `History`.
MOST_SERIES: Final = 5_000

SetKey = tuple[str, str]


@lazy_dataclass(slots=True)
class _Due:
    """When a set may be asked the same kind of question again, by trio's clock."""

    at_s: float = 0.0

    def is_over(self) -> bool:
        return trio.current_time() >= self.at_s

    def answered(self, interval_s: float, began_s: float) -> None:
        now = trio.current_time()
        self.at_s = began_s + max(interval_s, PATIENCE * (now - began_s))


class Collector:
    """The rounds: while ``run`` runs, each round replaces `snapshot` and extends `history`."""

    def __init__(self, admin: Admin, interval_s: float, timeout_s: float, clock: Clock | None = None) -> None:
        self._admin = admin
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._clock: Clock = clock or SystemClock()
        self.snapshot = Snapshot()
        self.history = History(MOST_SERIES)
        self._newer = trio.Event()
        self._asked_early = trio.Event()
        self._shapes: dict[Shape, Shape] = {}
        self._tables: dict[SetKey, SetTables] = {}
        self._progress: dict[SetKey, SetProgress] = {}
        self._paces: dict[SetKey, Pace] = {}
        self._due: dict[tuple[SetKey, str], _Due] = {}
        # The time for making the rows of the last round.
        self._built_s = 0.0
        self._controllers: dict[str, list[str]] = {}
        self._roll = Roll()
        # (set, kind of question) → the error; the question is asked again in the next round.
        self._unanswered: dict[tuple[SetKey, str], str] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask until cancelled; started after the first round."""
        is_first = True
        while True:
            with survived("a round of asking the brokers"):
                await self._round()
            if is_first:
                task_status.started()
                is_first = False
            with trio.move_on_after(max(self._interval_s, BUILD_PATIENCE * self._built_s)):
                await self._asked_early.wait()
            self._asked_early = trio.Event()

    def refresh_tables(self) -> None:
        """Ask for topics and groups now, as a change was made."""
        self._due.clear()
        self._asked_early.set()

    def broker_has_left(self, addr: str) -> bool:
        """Forget the absent broker at ``addr``. False when no broker is away there, or NameServers still list it."""
        return self._roll.forget(addr)

    async def newer_than(self, version: int) -> Snapshot:
        """The first snapshot after ``version``."""
        while self.snapshot.version <= version:
            await self._newer.wait()
        return self.snapshot

    def _publish(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._newer.set()
        self._newer = trio.Event()

    async def _round(self) -> None:
        before = self.snapshot
        try:
            with trio.fail_after(self._timeout_s * 2):
                info = await self._admin.cluster_info()
        except (SkylarkError, trio.TooSlowError) as error:
            text = explain(error) if isinstance(error, SkylarkError) else "the NameServers do not answer"
            if not before.error:
                logger.warning("the NameServers cannot be asked: %s", text)
            self._publish(replace(before, version=before.version + 1, error=text, problems=[]))
            return
        targets = all_targets(info)
        # All brokers are asked for their load; brokers that answer are asked further questions below.
        infos, errors = await self._each([one.addr for one in targets], self._admin.broker_runtime_info)
        first: dict[SetKey, Target] = {}
        for one in targets:
            if one.addr in infos:
                first.setdefault((one.cluster, one.broker_name), one)
        addrs = {key: one.addr for key, one in first.items()}
        now_ms = self._clock.now_ms()
        away = self._roll.update(now_ms, targets, errors, info.absent_brokers or ())
        # Keep the last answers of a broker that is away: its topics, and the lags of groups there.
        self._forget_all_but(self._roll.sets())
        await self._ask_of_sets(addrs)
        in_sync = await self._in_sync(addrs)
        found = Found(
            now_ms,
            targets,
            infos,
            errors,
            away,
            dict(self._tables),
            dict(self._progress),
            in_sync,
            [f"set {key[1]} does not tell its {kind}: {text}" for (key, kind), text in self._unanswered.items()],
        )
        size = sum(len(one.shapes) for one in self._tables.values()) + sum(
            len(one.lags) for one in self._progress.values()
        )
        began = trio.current_time()
        # Nothing of `found` changes while the thread reads it: tables are replaced, not changed.
        if size > MOST_ON_LOOP:
            snapshot = await trio.to_thread.run_sync(snapshot_of, found, before.version + 1)
        else:
            snapshot = snapshot_of(found, before.version + 1)
        self._built_s = trio.current_time() - began
        self.history.add(now_ms // 1000, snapshot.measured)
        # Only the history needs the measured values.
        snapshot.measured = []
        if before.error:
            logger.info("the NameServers answer again")
        self._publish(snapshot)

    async def _ask_of_sets(self, addrs: dict[SetKey, str]) -> None:
        """Ask the questions that are due. Without an answer the old one is kept: the broker's row has the error."""
        for kind, ask in (("lag", self._ask_progress), ("topics and groups", self._ask_tables)):
            due = [key for key in addrs if self._is_due(key, kind)]
            _, failed = await self._each(due, partial(ask, addrs))
            for key in due:
                self._record_refusal(key, kind, failed.get(key))

    def _record_refusal(self, key: SetKey, kind: str, error: str | None) -> None:
        """Keep the error of a question, or forget it when ``error`` is None. A new error is logged once."""
        if error is None:
            self._unanswered.pop((key, kind), None)
        else:
            if (key, kind) not in self._unanswered:
                logger.warning("set %s does not tell its %s: %s", key[1], kind, error)
            self._unanswered[key, kind] = error

    async def _ask_progress(self, addrs: Mapping[SetKey, str], key: SetKey) -> None:
        began = trio.current_time()
        stats = await self._admin.broker_consume_stats(addrs[key])
        consumed = self._paces.setdefault(key, Pace()).rates_after(trio.current_time(), stats)
        self._progress[key] = progress_of(stats, consumed)
        self._due[key, "lag"].answered(self._interval_s, began)

    async def _ask_tables(self, addrs: Mapping[SetKey, str], key: SetKey) -> None:
        began, addr = trio.current_time(), addrs[key]
        configs = await self._admin.all_topic_config(addr)
        groups = (await self._admin.all_groups(addr)).subscription_group_table
        self._tables[key] = tables_of(configs, groups, self._shapes)
        controllers = (await self._admin.broker_config(addr)).get("controllerAddr", "")
        self._controllers[key[1]] = [one.strip() for one in controllers.replace(",", ";").split(";") if one.strip()]
        self._due[key, "topics and groups"].answered(TABLES_INTERVAL_S, began)

    async def _in_sync(self, sets: Iterable[SetKey]) -> dict[str, Collection[str]]:
        """Broker name → addresses that Controllers count in sync; without sets whose Controllers do not answer."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for _, name in sets:
            if controllers := self._controllers.get(name):
                groups.setdefault(tuple(sorted(controllers)), []).append(name)
        found: dict[str, Collection[str]] = {}

        async def ask(controllers: tuple[str, ...]) -> None:
            names = sorted(groups[controllers])
            table = (await self._admin.sync_state_sets(list(controllers), names)).replicas_info_table
            for name, one in table.items():
                found[name] = frozenset(each.broker_address for each in one.in_sync_replicas)

        await self._each(groups, ask)
        return found

    def _is_due(self, key: SetKey, kind: str) -> bool:
        return self._due.setdefault((key, kind), _Due()).is_over()

    def _forget_all_but(self, keys: set[SetKey]) -> None:
        for table in (self._tables, self._progress, self._paces):
            for key in table.keys() - keys:
                del table[key]
        for key, kind in [one for one in self._unanswered if one[0] not in keys]:
            del self._unanswered[key, kind]

    async def _each(self, keys: Iterable[K], ask: Callable[[K], Awaitable[T]]) -> tuple[dict[K, T], dict[K, str]]:
        """Ask all at once, each with its own deadline. Returns the answers, and the errors, by key."""
        got: dict[K, T] = {}
        failed: dict[K, str] = {}

        async def ask_one(key: K) -> None:
            try:
                with trio.fail_after(self._timeout_s):
                    got[key] = await ask(key)
            except trio.TooSlowError:
                failed[key] = f"no answer within {self._timeout_s:g} s"
            except SkylarkError as error:
                failed[key] = explain(error)

        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(ask_one, key)
        return got, failed
