"""Whether a broker has taken its place in its set since its start. Pure.

/readyz waits for that, and a rolling update waits for /readyz before it stops the next broker.
"""

from collections.abc import Callable

from skylark.broker.replication.role import RoleMachine


class Joining:
    """A slave's place is that it copies its master, a master's that it has the slaves that its sends need.

    What comes later does not count: a master that is away makes none of its slaves unready.
    """

    def __init__(
        self,
        role: RoleMachine,
        copies: Callable[[], bool],
        has_slaves: Callable[[], bool],
        is_in_sync: Callable[[], bool] | None,
    ) -> None:
        """``has_slaves``: whether this broker could acknowledge sends as a master. ``is_in_sync``: with Controllers,
        whether this broker is in the SyncStateSet.
        """
        self._role = role
        self._copies = copies
        self._has_slaves = has_slaves
        self._is_in_sync = is_in_sync
        self._is_done = False

    def why_not(self) -> str:
        """Why the broker has not taken its place yet; "" once it has."""
        if not self._is_done:
            why = self._why_not_now()
            self._is_done = not why
            return why
        return ""

    def _why_not_now(self) -> str:
        if self._role.now.is_master:
            return "" if self._has_slaves() else "this master has fewer slaves than its sends need"
        if not self._copies():
            return "this broker does not copy a master yet"
        if self._is_in_sync is not None and not self._is_in_sync():
            return "this broker is not in the SyncStateSet yet"
        return ""
