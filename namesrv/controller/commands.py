"""The commands in the log of the Controllers: each has everything that its result depends on. Pure.

Only the leader knows which brokers are alive, so commands that depend on this carry the living brokers. An entry is
CBOR: the version, the kind, and the fields in their order.
"""

from dataclasses import fields
from typing import Any, Final, NamedTuple

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.strict_cbor import dumps, loads

VERSION: Final = 1
#: The priority of a broker that names none. Lower values go first.
DEFAULT_PRIORITY: Final = 2_147_483_647


class Candidate(NamedTuple):
    """A broker that is alive and may be the master: the newest epoch of its log, and its end."""

    broker_id: int
    epoch: int = -1
    max_offset: int = 0
    priority: int = DEFAULT_PRIORITY


@lazy_dataclass(frozen=True, slots=True)
class ApplyBrokerId:
    """A broker claims an id (1013)."""

    cluster: str
    name: str
    broker_id: int
    check_code: str


@lazy_dataclass(frozen=True, slots=True)
class RegisterBroker:
    """A broker tells its address (1003)."""

    name: str
    broker_id: int
    address: str


@lazy_dataclass(frozen=True, slots=True)
class AlterSyncStateSet:
    """The master has another SyncStateSet (1001). ``alive``: the living brokers."""

    name: str
    master: int
    master_epoch: int
    new_set: tuple[int, ...]
    set_epoch: int
    alive: tuple[int, ...]


@lazy_dataclass(frozen=True, slots=True)
class ElectMaster:
    """Elect a master (1002).

    ``broker_id``: the broker that asks, None for the Controller; if ``designated``, the new master.
    """

    name: str
    broker_id: int | None
    designated: bool
    candidates: tuple[Candidate, ...]
    unclean: bool


@lazy_dataclass(frozen=True, slots=True)
class CleanBrokerData:
    """Forget replicas (1011); without ``broker_ids`` all replicas of the set."""

    name: str
    broker_ids: tuple[int, ...]
    alive: tuple[int, ...]
    even_living: bool


Change = ApplyBrokerId | RegisterBroker | AlterSyncStateSet | ElectMaster | CleanBrokerData

_KINDS: Final[tuple[type[Any], ...]] = (ApplyBrokerId, RegisterBroker, AlterSyncStateSet, ElectMaster, CleanBrokerData)


def encode_change(change: Change) -> bytes:
    """An entry of the log."""
    values = [getattr(change, each.name) for each in fields(change)]
    if isinstance(change, ElectMaster):
        values[3] = [list(each) for each in change.candidates]
    return dumps([VERSION, _KINDS.index(type(change)), *[list(v) if isinstance(v, tuple) else v for v in values]])


def decode_change(data: bytes) -> Change:
    """The change of an entry. Raises ProtocolError when a later version of Skylark wrote it."""
    version, kind, *values = loads(data)
    if version != VERSION or kind >= len(_KINDS):
        raise ProtocolError(
            f"an entry of the Controllers has version {version}, kind {kind}; this Controller knows version {VERSION}:"
            " run the newer Skylark on all Controllers"
        )
    if _KINDS[kind] is ElectMaster:
        values[3] = [Candidate(*each) for each in values[3]]
    change: Change = _KINDS[kind](*[tuple(v) if isinstance(v, list) else v for v in values])
    return change
