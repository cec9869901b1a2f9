"""Which brokers are away, and since when: also those that the NameServers have forgotten. Pure.

A NameServer drops a broker whose connection ends, so a master that dies is in no list a moment later. The roll keeps
each broker that has been listed. A broker that is listed no longer is away until

  - the broker, or another process in its place, is listed: a new address of a set takes the place of a broker of the
    set that is away, as a container gets a new address at each start;
  - a NameServer of ours told that the broker is away, and tells so no longer: the broker was forgotten with mqadmin;
  - somebody says that the broker has left for good, or KEEP_MS are over, as NameServers of RocketMQ tell nothing.

Brokers that only the NameServers know of (`ClusterInfo.absent_brokers`) are away, too; their address is not known.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.protocol.requests.routes import AbsentBroker
from skylark.sdk.admin.reports.report import named
from skylark.sdk.admin.targets import Target
from skylark.sdk.routes import away_because

#: A broker that no NameServer lists is remembered for a day.
KEEP_MS: Final = 86_400_000
#: Brokers that are away and listed no longer; the one that has been away for longest makes room.
MOST_UNLISTED: Final = 1_000
UNLISTED: Final = "the NameServers no longer list it: its connection ended, or it was stopped"


@lazy_dataclass(frozen=True, slots=True)
class AwayBroker:
    """A broker that cannot be asked. ``addr`` is empty and ``broker_id`` None when only its name is known.

    ``is_since_known``: it was seen before, so ``since_ms`` is when it went; else it has been away for longer.
    ``is_listed``: its address is still registered. ``is_told``: a NameServer of ours says that it is away.
    ``is_succeeded``: another broker of its set has become the master.
    """

    cluster: str
    broker_name: str
    broker_id: int | None
    addr: str
    since_ms: int
    is_since_known: bool
    reason: str
    is_listed: bool = False
    is_told: bool = False
    is_succeeded: bool = False

    @property
    def is_master(self) -> bool:
        """Whether queues cannot be written: a master, or a broker of which nothing but the name is known."""
        return self.broker_id in (MASTER_ID, None) and not self.is_succeeded

    @property
    def title(self) -> str:
        """``master broker-a at 10.0.0.1:10911``."""
        if self.broker_id is None:
            return f"broker {self.broker_name}"
        role = f"slave {self.broker_id} of" if self.broker_id != MASTER_ID else "master"
        return f"{'former ' if self.is_succeeded else ''}{role} {self.broker_name} at {self.addr}"

    def row(self) -> "AwayRow":
        """What pages tell of it."""
        return AwayRow(
            self.cluster,
            self.broker_name,
            self.broker_id,
            self.addr,
            self.is_master,
            self.since_ms,
            self.is_since_known,
            self.reason,
        )


@lazy_dataclass(frozen=True, slots=True)
class AwayRow:
    """A broker that is away, as pages tell of it; see `AwayBroker`."""

    cluster_name: str
    broker_name: str
    broker_id: int | None
    broker_addr: str
    is_master: bool
    away_since_ms: int = field(metadata=named("awaySince"))
    is_since_known: bool
    reason: str


@lazy_dataclass(slots=True)
class _Member:
    """A broker that has been listed. ``away`` is None while it answers."""

    target: Target
    away: AwayBroker | None = None


class Roll:
    """`call` it in each round."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        # Names of which only the NameServers know, and since when.
        self._names: dict[str, AwayBroker] = {}
        # Names that NameServers told are away, in the last round.
        self._told: dict[str, AbsentBroker] = {}
        self._rounds = 0

    def call(
        self, now_ms: int, listed: Sequence[Target], errors: Mapping[str, str], absent: Iterable[AbsentBroker]
    ) -> list[AwayBroker]:
        """Those that are away now, masters first. ``errors``: why a broker that is listed does not answer."""
        told = {one.broker_name: one for one in absent}
        self._note_listed(now_ms, listed, errors)
        self._note_unlisted(now_ms, {one.addr for one in listed}, told)
        self._note_names(now_ms, told)
        self._told = told
        self._rounds += 1
        found = [one.away for one in self._members.values() if one.away is not None]
        return sorted([*found, *self._names.values()], key=lambda one: (not one.is_master, one.since_ms, one.title))

    def leave(self, addr: str) -> bool:
        """The broker that is away from ``addr`` has left for good. False when none is, or when it is still listed."""
        member = self._members.get(addr)
        if member is None or member.away is None or member.away.is_listed:
            return False
        del self._members[addr]
        return True

    def sets(self) -> set[tuple[str, str]]:
        """Cluster and name of each set with a member."""
        return {(one.target.cluster, one.target.broker_name) for one in self._members.values()}

    def _note_listed(self, now_ms: int, listed: Sequence[Target], errors: Mapping[str, str]) -> None:
        for target in listed:
            member = self._members.get(target.addr)
            error = errors.get(target.addr)
            if member is None:
                self._replace_one(target, {one.addr for one in listed})
                member = self._members[target.addr] = _Member(target)
                is_since_known = False
            else:
                member.target = target
                is_since_known = True
            if error is None:
                member.away = None
            elif member.away is None:
                member.away = _away(target, now_ms, is_since_known, error, is_listed=True)
            else:
                member.away = replace(
                    member.away,
                    broker_id=target.broker_id,
                    reason=error,
                    is_listed=True,
                    is_told=False,
                    is_succeeded=False,
                )

    def _replace_one(self, new: Target, listed: set[str]) -> None:
        """A process that was never seen is taken for one that is away in its set: of its id, else the longest away."""
        gone = [
            one
            for addr, one in self._members.items()
            if addr not in listed and (one.target.cluster, one.target.broker_name) == (new.cluster, new.broker_name)
        ]
        if gone:
            best = min(
                gone,
                key=lambda one: (one.target.broker_id != new.broker_id, one.away.since_ms if one.away else 0),
            )
            del self._members[best.target.addr]

    def _note_unlisted(self, now_ms: int, listed: set[str], told: Mapping[str, AbsentBroker]) -> None:
        masters = {
            (one.target.cluster, one.target.broker_name)
            for addr, one in self._members.items()
            if addr in listed and one.target.broker_id == MASTER_ID
        }
        for addr, member in list(self._members.items()):
            target = member.target
            if addr in listed:
                continue
            says = told.get(target.broker_name)
            was_forgotten = says is None and target.broker_name in self._told and not self._is_listed(target, listed)
            if was_forgotten or (member.away is not None and now_ms - member.away.since_ms > KEEP_MS):
                del self._members[addr]
                continue
            is_succeeded = target.broker_id == MASTER_ID and (target.cluster, target.broker_name) in masters
            before = member.away or _away(target, now_ms, True, "")
            member.away = replace(
                before,
                broker_id=target.broker_id,
                reason=UNLISTED if says is None else away_because(says),
                is_listed=False,
                is_told=says is not None,
                is_succeeded=is_succeeded,
            )
        unlisted = sorted(
            (one.away.since_ms, addr)
            for addr, one in self._members.items()
            if one.away is not None and not one.away.is_listed
        )
        for _, addr in unlisted[: max(len(unlisted) - MOST_UNLISTED, 0)]:
            del self._members[addr]

    def _is_listed(self, target: Target, listed: set[str]) -> bool:
        """Whether another member of the set is listed: then the NameServer tells nothing of those that are away."""
        return any(
            addr in listed and one.target.broker_name == target.broker_name for addr, one in self._members.items()
        )

    def _note_names(self, now_ms: int, told: Mapping[str, AbsentBroker]) -> None:
        known = {one.target.broker_name for one in self._members.values()}
        self._names = {
            name: self._names.get(name)
            or AwayBroker(one.cluster, name, None, "", now_ms, self._rounds > 0, away_because(one), is_told=True)
            for name, one in told.items()
            if name not in known
        }


def _away(target: Target, since_ms: int, is_since_known: bool, reason: str, *, is_listed: bool = False) -> AwayBroker:
    return AwayBroker(
        target.cluster, target.broker_name, target.broker_id, target.addr, since_ms, is_since_known, reason, is_listed
    )
