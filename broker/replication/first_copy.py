"""Whether a broker's set can count on its copy of the log, since its start. Pure.

/readyz waits for that, and a rolling update waits for /readyz.
"""

from collections.abc import Callable

from skylark.broker.replication.role import RoleMachine


class FirstCopy:
    """Whether a broker that started as a slave has come to copy its master, or to lead.

    What comes later does not count: a rolling update goes on when the broker that is back does its part, and a master
    that is away makes none of its slaves unready.
    """

    def __init__(self, role: RoleMachine, copies: Callable[[], bool], is_in_sync: Callable[[], bool] | None) -> None:
        self._role = role
        self._copies = copies
        self._is_in_sync = is_in_sync
        self._is_done = False

    def why_not(self) -> str:
        """Why it has not yet; "" once it has."""
        if self._is_done or self._role.now.is_master:
            self._is_done = True
        elif not self._copies():
            return "this broker does not copy a master yet"
        elif self._is_in_sync is not None and not self._is_in_sync():
            return "this broker is not in the SyncStateSet yet"
        else:
            self._is_done = True
        return ""
