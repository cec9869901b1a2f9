"""Which brokers are away, and since when: also brokers that the NameServers have forgotten. Pure.

A NameServer drops a broker whose connection ends, so a master that dies is in no list a moment later. The roll keeps
each broker that has been listed. A broker that is listed no longer is away until

  - the broker, or another process in its place, is listed: a new address of a set takes the place of a broker of the
    set that is away, as a container gets a new address at each start;
  - a NameServer of Skylark reported the broker away, and no longer does: the broker was forgotten with mqadmin;
  - somebody says that the broker has left for good, or KEEP_MS are over: NameServers of RocketMQ report nothing.

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

#: How long a broker that no NameServer lists is remembered: a day.
KEEP_MS: Final = 86_400_000
#: The most brokers that are away and no longer listed; the broker that has been away longest makes room.
MOST_UNLISTED: Final = 1_000
UNLISTED: Final = "the NameServers no longer list it: its connection ended, or it was stopped"


@lazy_dataclass(frozen=True, slots=True)
class AwayBroker:
    """A broker that is away. ``addr`` is empty and ``broker_id`` None when only the broker's name is known.

    ``is_since_known``: ``since_ms`` is when the broker went away; otherwise it went away before ``since_ms``.
    ``is_listed``: its address is still registered. ``is_reported``: a NameServer of Skylark reports it away.
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
    is_reported: bool = False
    is_succeeded: bool = False

    @property
    def is_master(self) -> bool:
        """Whether queues cannot be written: true for a master, and for a broker of which only the name is known."""
        return self.broker_id in (MASTER_ID, None) and not self.is_succeeded

    @property
    def title(self) -> str:
        """``master broker-a at 10.0.0.1:10911``."""
        if self.broker_id is None:
            return f"broker {self.broker_name}"
        role = f"slave {self.broker_id} of" if self.broker_id != MASTER_ID else "master"
        return f"{'former ' if self.is_succeeded else ''}{role} {self.broker_name} at {self.addr}"

    def row(self) -> "AwayRow":
        """The broker as pages show it."""
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
    """A broker that is away, as pages show it; see `AwayBroker`."""

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
    """A broker that has been listed. ``away`` is None while the broker answers."""

    target: Target
    away: AwayBroker | None = None


class Roll:
    """All brokers that have been listed; each round calls `update`."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        # Name → broker that only the NameServers know, by name.
        self._names: dict[str, AwayBroker] = {}
        # Brokers that NameServers reported away in the last round, by name.
        self._reported: dict[str, AbsentBroker] = {}
        self._rounds = 0

    def update(
        self, now_ms: int, listed: Sequence[Target], errors: Mapping[str, str], absent: Iterable[AbsentBroker]
    ) -> list[AwayBroker]:
        """The brokers that are away now, masters first. ``errors``: why a listed broker does not answer."""
        reported = {one.broker_name: one for one in absent}
        self._update_listed(now_ms, listed, errors)
        self._update_unlisted(now_ms, {one.addr for one in listed}, reported)
        self._update_names(now_ms, reported)
        self._reported = reported
        self._rounds += 1
        found = [one.away for one in self._members.values() if one.away is not None]
        return sorted([*found, *self._names.values()], key=lambda one: (not one.is_master, one.since_ms, one.title))

    def forget(self, addr: str) -> bool:
        """Forget the absent broker at ``addr``. False when no broker is away there, or NameServers still list it."""
        member = self._members.get(addr)
        if member is None or member.away is None or member.away.is_listed:
            return False
        del self._members[addr]
        return True

    def sets(self) -> set[tuple[str, str]]:
        """Cluster and name of each set with a member."""
        return {(one.target.cluster, one.target.broker_name) for one in self._members.values()}

    def _update_listed(self, now_ms: int, listed: Sequence[Target], errors: Mapping[str, str]) -> None:
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
                    is_reported=False,
                    is_succeeded=False,
                )

    def _replace_one(self, new: Target, listed: set[str]) -> None:
        """Treat a new process as the successor of an absent broker of its set: the same id, else the longest away."""
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

    def _update_unlisted(self, now_ms: int, listed: set[str], reported: Mapping[str, AbsentBroker]) -> None:
        masters = {
            (one.target.cluster, one.target.broker_name)
            for addr, one in self._members.items()
            if addr in listed and one.target.broker_id == MASTER_ID
        }
        for addr, member in list(self._members.items()):
            target = member.target
            if addr in listed:
                continue
            says = reported.get(target.broker_name)
            was_forgotten = (
                says is None and target.broker_name in self._reported and not self._is_listed(target, listed)
            )
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
                is_reported=says is not None,
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
        """Whether another member of the set is listed: then the NameServer does not report absent members."""
        return any(
            addr in listed and one.target.broker_name == target.broker_name for addr, one in self._members.items()
        )

    def _update_names(self, now_ms: int, reported: Mapping[str, AbsentBroker]) -> None:
        known = {one.target.broker_name for one in self._members.values()}
        self._names = {
            name: self._names.get(name)
            or AwayBroker(one.cluster, name, None, "", now_ms, self._rounds > 0, away_because(one), is_reported=True)
            for name, one in reported.items()
            if name not in known
        }


def _away(target: Target, since_ms: int, is_since_known: bool, reason: str, *, is_listed: bool = False) -> AwayBroker:
    return AwayBroker(
        target.cluster, target.broker_name, target.broker_id, target.addr, since_ms, is_since_known, reason, is_listed
    )
