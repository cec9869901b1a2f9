"""Brokers that claim the same place: two addresses with the same name and id. Pure.

Each registration of one displaces the other, so clients are sent to one and the other by turns. The NameServer tells
the broker that registers, and shows it to administrators for CONTEST_MS. A broker that has merely moved to another
address drops out after that time, as its old address does not register again.
Neighbours: routes.py notes, handlers.py tells (103, 106).
"""

CONTEST_MS = 120_000
MAX_PLACES = 1_000


class Rivals:
    """The brokers that lost a place lately, and which place."""

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
        """The broker at ``addr`` has unregistered."""
        self._lost = {place: lost for place, lost in self._lost.items() if lost[0] != addr}

    def contested(self, now_ms: int) -> dict[str, dict[int, str]]:
        """By name and id, the address of the broker that claims the place and does not have it."""
        self._lost = {place: lost for place, lost in self._lost.items() if now_ms - lost[1] <= CONTEST_MS}
        found: dict[str, dict[int, str]] = {}
        for (name, broker_id), (addr, _) in sorted(self._lost.items()):
            found.setdefault(name, {})[broker_id] = addr
        return found
