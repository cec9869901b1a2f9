"""All broker sets, changed only by entries of the log, so the same on each Controller; and the choice of masters. Pure.

A `BrokerSet` is immutable, so an answer may hold a set while the next entry is applied.

A refused command changes nothing, and gets RocketMQ's code and text. An election raises both epochs and leaves the new
master alone in the SyncStateSet, since only the new master knows where the other logs differ from its own.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.namesrv.controller.commands import (
    VERSION,
    AlterSyncStateSet,
    ApplyBrokerId,
    Candidate,
    Change,
    CleanBrokerData,
    ElectMaster,
    RegisterBroker,
    decode_change,
)
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.controller import MasterHeader, SyncStateSet
from skylark.remoting.protocol.strict_cbor import dumps, loads


@lazy_dataclass(frozen=True, slots=True)
class Replica:
    """One broker of a set. ``check_code`` is its claim to the id; ``address`` is empty until it registers."""

    check_code: str
    address: str = ""


@lazy_dataclass(frozen=True, slots=True)
class BrokerSet:
    """One set.

    ``next_id`` was never given to a broker. Both epochs only rise; ``master`` is None while no broker may lead.
    """

    cluster: str
    name: str
    next_id: int = 1
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    master: int | None = None
    master_epoch: int = 0
    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int = 0

    def address(self, broker_id: int | None) -> str | None:
        """Where a replica listens; None when it is unknown or has not registered."""
        replica = None if broker_id is None else self.replicas.get(broker_id)
        return replica.address or None if replica else None

    @property
    def addresses(self) -> dict[int, str]:
        """All replicas that have registered."""
        return {each: replica.address for each, replica in sorted(self.replicas.items()) if replica.address}

    @property
    def master_header(self) -> MasterHeader:
        """The master, as answers and notices name it."""
        return MasterHeader(self.master, self.address(self.master), self.master_epoch, self.sync_state_set_epoch)

    @property
    def in_sync(self) -> SyncStateSet:
        """The SyncStateSet, as a body."""
        return SyncStateSet(sorted(self.sync_state_set), self.sync_state_set_epoch)

    def to_plain(self) -> list[Any]:
        """Plain values for a snapshot."""
        replicas = [[each, replica.check_code, replica.address] for each, replica in sorted(self.replicas.items())]
        return [
            self.cluster,
            self.name,
            self.next_id,
            replicas,
            self.master,
            self.master_epoch,
            sorted(self.sync_state_set),
            self.sync_state_set_epoch,
        ]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> "BrokerSet":
        """The set that ``to_plain`` wrote."""
        cluster, name, next_id, replicas, master, master_epoch, in_sync, in_sync_epoch = plain
        known = {each: Replica(check_code, address) for each, check_code, address in replicas}
        return cls(cluster, name, next_id, known, master, master_epoch, frozenset(in_sync), in_sync_epoch)


# Part of the meaning of the log: another value needs another version of the log's entries.
MAX_SETS = 50_000
MAX_REPLICAS = 64
_CLEAN_LIVING = "Broker [{},  {}] is still alive, clean up failure"


@lazy_dataclass(frozen=True, slots=True)
class ChangeOutcome:
    """The outcome of a change: a code, for a refusal with its reason, and the set as it is now.

    ``is_unclean``: the new master was not in the SyncStateSet, so acknowledged messages may be lost.
    """

    code: int
    remark: str | None
    broker_set: BrokerSet | None
    is_unclean: bool = False


class Replicas:
    """The state machine of the Controllers."""

    def __init__(self) -> None:
        self.sets: dict[str, BrokerSet] = {}

    # The state machine of remoting/raft.

    def apply(self, index: int, data: bytes) -> ChangeOutcome:
        """Carry out an entry."""
        return self.change(decode_change(data))

    def snapshot(self) -> bytes:
        """The whole state."""
        return dumps([VERSION, [each.to_plain() for _, each in sorted(self.sets.items())]])

    def restore(self, data: bytes) -> None:
        """Replace the state by a ``snapshot``."""
        plain: list[Any] = loads(data)[1] if data else []
        self.sets = {each.name: each for each in map(BrokerSet.from_plain, plain)}

    # Changes.

    def change(self, change: Change) -> ChangeOutcome:
        """Carry out ``change``, or refuse it."""
        match change:
            case ApplyBrokerId():
                return self._apply_id(change)
            case RegisterBroker():
                return self._register(change)
            case AlterSyncStateSet():
                return self._alter(change)
            case ElectMaster():
                return self._elect(change)
            case CleanBrokerData():
                return self._clean(change)

    def _apply_id(self, change: ApplyBrokerId) -> ChangeOutcome:
        known = self.sets.get(change.name) or BrokerSet(change.cluster, change.name)
        if known.cluster != change.cluster:
            refusal = f"Broker-set: {change.name} belongs to cluster {known.cluster}, not {change.cluster}"
            return ChangeOutcome(ResponseCode.CONTROLLER_BROKER_ID_INVALID, refusal, known)
        # A broker with the same code asks again after a crash, or because the answer was lost: it has the id already.
        holder = known.replicas.get(change.broker_id)
        if holder is not None and holder.check_code == change.check_code:
            return ChangeOutcome(ResponseCode.SUCCESS, None, known)
        # Ids are given in order, and each once as long as the set exists: a cleaned broker that comes back must not
        # find another broker with its id.
        if change.broker_id != known.next_id:
            refusal = f"Fail to apply brokerId: {change.broker_id} in broker-set: {change.name}"
            return ChangeOutcome(ResponseCode.CONTROLLER_BROKER_ID_INVALID, refusal, known)
        if len(self.sets) >= MAX_SETS or len(known.replicas) >= MAX_REPLICAS:
            refusal = f"a group of Controllers keeps up to {MAX_SETS} sets of {MAX_REPLICAS} replicas: clean old ones"
            return ChangeOutcome(ResponseCode.CONTROLLER_BROKER_ID_INVALID, refusal, known)
        replicas = {**known.replicas, change.broker_id: Replica(change.check_code)}
        return self._keep(replace(known, next_id=known.next_id + 1, replicas=replicas))

    def _register(self, change: RegisterBroker) -> ChangeOutcome:
        known = self.sets.get(change.name)
        refusal = why_not_registered(known, change.name, change.broker_id)
        if known is None or refusal is not None:
            return ChangeOutcome(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, refusal, known)
        replica = replace(known.replicas[change.broker_id], address=change.address)
        return self._keep(replace(known, replicas={**known.replicas, change.broker_id: replica}))

    def _alter(self, change: AlterSyncStateSet) -> ChangeOutcome:
        known = self.sets.get(change.name)
        if known is None:
            return ChangeOutcome(
                ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "Broker metadata is not existed", None
            )
        fault = _alter_fault(known, change)
        if fault is not None:
            code, reason = fault
            return ChangeOutcome(code, f"Rejecting alter syncStateSet request because {reason}", known)
        # The epochs are compared first: a master that was deposed, or does not know the present set, changes nothing.
        new_set = frozenset(change.new_set)
        return self._keep(replace(known, sync_state_set=new_set, sync_state_set_epoch=known.sync_state_set_epoch + 1))

    def _elect(self, change: ElectMaster) -> ChangeOutcome:
        known = self.sets.get(change.name)
        if known is None or not known.replicas:
            return ChangeOutcome(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "Broker hasn't been registered", known
            )
        new_master = _choose(known, change)
        if new_master is None:
            return self._leave_masterless(known, change)
        if new_master == known.master:
            refusal = f"The old master {known.address(new_master)} is still alive, not need to elect new master"
            refusal += f" for broker {known.name}"
            return ChangeOutcome(ResponseCode.CONTROLLER_MASTER_STILL_EXIST, refusal, known)
        # The SyncStateSet shrinks to the new master: only the new master knows where the other logs differ from its
        # own. The other replicas join again when they have caught up.
        is_unclean = bool(known.sync_state_set) and new_master not in known.sync_state_set
        return self._keep(
            replace(
                known,
                master=new_master,
                master_epoch=known.master_epoch + 1,
                sync_state_set=frozenset({new_master}),
                sync_state_set_epoch=known.sync_state_set_epoch + 1,
            ),
            is_unclean=is_unclean,
        )

    def _leave_masterless(self, known: BrokerSet, change: ElectMaster) -> ChangeOutcome:
        if change.broker_id is not None:
            return ChangeOutcome(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "Failed to elect a new master", known)
        # The Controller asks only when the master is dead: from now on the set has none. The SyncStateSet stays: only a
        # member of the SyncStateSet may lead again, as soon as a member is back.
        self._keep(lost := replace(known, master=None))
        refusal = "The old master has already been shutdown, no replica of the SyncStateSet is alive"
        return ChangeOutcome(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, refusal, lost)

    def _clean(self, change: CleanBrokerData) -> ChangeOutcome:
        code = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
        known = self.sets.get(change.name)
        if known is None:
            return ChangeOutcome(code, f"Broker {change.name} is not existed,clean broker data failure.", None)
        to_clean = set(change.broker_ids) or set(known.replicas)
        for each in sorted(to_clean):
            if each not in known.replicas:
                return ChangeOutcome(
                    code, f"Broker [{change.name},  {each}] is not existed,clean broker data failure.", known
                )
            if each in change.alive and not change.even_living:
                return ChangeOutcome(code, _CLEAN_LIVING.format(change.name, each), known)
        replicas = {each: replica for each, replica in known.replicas.items() if each not in to_clean}
        if not replicas:
            del self.sets[change.name]
            return ChangeOutcome(ResponseCode.SUCCESS, None, None)
        # A new epoch when the set changes, so that an earlier request of a master cannot bring the broker back.
        in_sync = known.sync_state_set - to_clean
        raised = known.sync_state_set_epoch + (in_sync != known.sync_state_set)
        master = None if known.master in to_clean else known.master
        return self._keep(
            replace(known, replicas=replicas, master=master, sync_state_set=in_sync, sync_state_set_epoch=raised)
        )

    def _keep(self, broker_set: BrokerSet, *, is_unclean: bool = False) -> ChangeOutcome:
        self.sets[broker_set.name] = broker_set
        return ChangeOutcome(ResponseCode.SUCCESS, None, broker_set, is_unclean)


def why_not_registered(known: BrokerSet | None, name: str, broker_id: int) -> str | None:
    """Why a broker has to apply for an id first; None when it has an id."""
    if known is None:
        return f"Broker-set: {name} hasn't been registered in controller"
    if broker_id not in known.replicas:
        return f"BrokerId: {broker_id} hasn't been registered in broker-set: {name}"
    return None


def _choose(known: BrokerSet, change: ElectMaster) -> int | None:
    if known.master_epoch == 0 and change.broker_id is not None and not change.designated:
        # Nothing was ever acknowledged in this set: the first broker that asks leads.
        return change.broker_id if change.broker_id in known.replicas else None
    candidates = [each for each in change.candidates if known.address(each.broker_id)]
    designated = change.broker_id if change.designated else None
    return elect(candidates, known.sync_state_set, known.master, designated, unclean=change.unclean)


def elect(
    candidates: Iterable[Candidate],
    in_sync: Collection[int],
    old_master: int | None,
    designated: int | None,
    *,
    unclean: bool,
) -> int | None:
    """The id of the next master; None when no candidate may lead.

    If a broker is designated, it is this broker or none. Otherwise it is the old master when alive, else the candidate
    with the longest log. Only members of the SyncStateSet have every acknowledged message. Another broker is elected
    only where the operator prefers taking new messages to keeping acknowledged messages (``unclean``).
    """
    alive = list(candidates)
    found = _best([each for each in alive if each.broker_id in in_sync], old_master, designated)
    return _best(alive, old_master, designated) if found is None and unclean else found


def _best(candidates: list[Candidate], old_master: int | None, designated: int | None) -> int | None:
    ids = [each.broker_id for each in candidates]
    if designated is not None:
        return designated if designated in ids else None
    if old_master in ids:
        return old_master
    # By epoch before length: an older master's log may have bytes that its successor never had.
    ranked = sorted(candidates, key=lambda each: (-each.epoch, -each.max_offset, each.priority, each.broker_id))
    return ranked[0].broker_id if ranked else None


def _alter_fault(known: BrokerSet, change: AlterSyncStateSet) -> tuple[int, str] | None:
    new_set = set(change.new_set)
    if known.master != change.master:
        reason = f"the current leader is:{{{known.master}}}, not {{{change.master}}}"
        return ResponseCode.CONTROLLER_INVALID_MASTER, reason
    if known.master_epoch != change.master_epoch:
        reason = f"the current master epoch is:{{{known.master_epoch}}}, not {{{change.master_epoch}}}"
        return ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, reason
    if known.sync_state_set_epoch != change.set_epoch:
        reason = f"the current syncStateSet epoch is:{{{known.sync_state_set_epoch}}}, not {{{change.set_epoch}}}"
        return ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, reason
    if change.master not in new_set:
        reason = f"the newSyncStateSet don't contains origin leader {{{change.master}}}"
        return ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, reason
    if unknown := new_set - set(known.replicas):
        return ResponseCode.CONTROLLER_INVALID_REPLICAS, f"the replicas {{{_ids(unknown)}}} don't exist"
    if dead := new_set - known.sync_state_set - set(change.alive):
        return ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"the replicas {{{_ids(dead)}}} don't alive"
    # RocketMQ refuses an unchanged set. Here the set gets a new epoch, so an earlier request cannot take effect.
    return None


def _ids(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids)))
