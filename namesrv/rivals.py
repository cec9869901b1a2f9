"""Brokers that claim the same place: one name and one id at two addresses. Pure.

Each registration of one displaces the other, so that clients find now this one, now that one. The NameServer tells the
one that registers, and administrators for CONTEST_MS after it happened: a broker that only moved is not heard of again.
Neighbours: routes.py notes, handlers.py tells (103, 106).
"""

CONTEST_MS = 120_000
MAX_PLACES = 1_000


class Rivals:
    """Who lost which place lately."""

    def __init__(self) -> None:
        # (broker name, id) -> (address, when), the latest last
        self._lost: dict[tuple[str, int], tuple[str, int]] = {}

    def note(self, broker_name: str, broker_id: int, addr: str, now_ms: int) -> None:
        """The broker at ``addr`` lost that place, or was refused it."""
        self._lost.pop((broker_name, broker_id), None)
        self._lost[broker_name, broker_id] = addr, now_ms
        if len(self._lost) > MAX_PLACES:
            del self._lost[next(iter(self._lost))]

    def gone(self, addr: str) -> None:
        """The broker at ``addr`` says good-bye."""
        self._lost = {place: lost for place, lost in self._lost.items() if lost[0] != addr}

    def contested(self, now_ms: int) -> dict[str, dict[int, str]]:
        """By name and id, the address of the broker that does not have the place and claims it."""
        self._lost = {place: lost for place, lost in self._lost.items() if now_ms - lost[1] <= CONTEST_MS}
        found: dict[str, dict[int, str]] = {}
        for (name, broker_id), (addr, _) in sorted(self._lost.items()):
            found.setdefault(name, {})[broker_id] = addr
        return found
