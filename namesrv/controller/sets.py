"""A broker set as Controllers remember it: who belongs to it, who is its master, who has all that was acknowledged.

The values are immutable: an answer may hold one while the next entry is applied. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Replica:
    """One broker of a set. ``check_code`` is its claim to the id; ``address`` is empty until it registers."""

    check_code: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class BrokerSet:
    """``next_id`` was never given. Both epochs only rise; ``master`` is None while nobody may lead."""

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

    def to_plain(self) -> list[Any]:
        """Plain values for a snapshot."""
        replicas = [[each, replica.check_code, replica.address] for each, replica in sorted(self.replicas.items())]
        return [
            self.cluster, self.name, self.next_id, replicas, self.master, self.master_epoch,
            sorted(self.sync_state_set), self.sync_state_set_epoch,
        ]  # fmt: skip

    @classmethod
    def from_plain(cls, plain: list[Any]) -> "BrokerSet":
        """The set that ``to_plain`` wrote."""
        cluster, name, next_id, replicas, master, master_epoch, in_sync, in_sync_epoch = plain
        known = {each: Replica(check_code, address) for each, check_code, address in replicas}
        return cls(cluster, name, next_id, known, master, master_epoch, frozenset(in_sync), in_sync_epoch)
