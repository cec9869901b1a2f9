"""Notifies the members of a consumer group that its members changed (40), so that they rebalance its queues.

The first change is sent at once. Changes within the next WINDOW_S are sent together at its end: 1,500 members that join
one after another cause a few rounds of notices, not 1,500. The notices of one turn of the event loop are limited.
Neighbours: client.py (says which groups changed, and runs this), meta/clients.py.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator

import trio

from broker.meta.clients import Clients
from broker.meta.groups import Groups
from broker.options import BrokerOptions
from mqcommon.signal import Signal
from remoting.protocol.requests.clients import NOTIFY_CONSUMER_IDS_CHANGED
from remoting.protocol.requests.groups import NotifyConsumerIdsChangedRequestHeader

WINDOW_S = 0.2
# Notices in one turn of the event loop: each costs about 10 µs.
SLICE = 500


class MemberNotices:
    """See the module. Times are trio's, in seconds."""

    def __init__(self, clients: Clients, groups: Groups, options: BrokerOptions) -> None:
        self._clients = clients
        self._groups = groups
        self._options = options
        # Groups that were notified less than WINDOW_S ago; until when that is, oldest first.
        self._quiet: set[str] = set()
        self._quiet_until: deque[tuple[float, str]] = deque()
        # Those of them that changed since.
        self._again: set[str] = set()
        # Groups to notify in the next turns of the event loop: an ordered set.
        self._ready: dict[str, None] = {}
        self._wake = Signal()

    def changed(self, groups: Iterable[str]) -> None:
        """The members of ``groups`` changed, or their subscriptions."""
        if not self._options.notify_consumer_ids_changed_enable:
            return
        for name in groups:
            group = self._clients.consumer_group(name)
            if group is None:
                continue
            if name in self._quiet:
                self._again.add(name)
            elif len(group.members) > SLICE:
                self._ready[name] = None
                self._wake.set()
            else:
                for _ in self._tell(name):
                    pass

    async def run(self) -> None:
        """Send waiting notices when they are due, until cancelled."""
        while True:
            self._end_windows(trio.current_time())
            while self._ready:
                name = next(iter(self._ready))
                del self._ready[name]
                for _ in self._tell(name):
                    await trio.lowlevel.checkpoint()
            with trio.move_on_at(self._quiet_until[0][0] if self._quiet_until else math.inf):
                await self._wake.wait()

    def _end_windows(self, now: float) -> None:
        while self._quiet_until and self._quiet_until[0][0] <= now:
            _, name = self._quiet_until.popleft()
            self._quiet.discard(name)
            if name in self._again:
                self._again.discard(name)
                self._ready[name] = None

    def _tell(self, name: str) -> Iterator[None]:
        """Notify the members of a group; yields after each SLICE of them."""
        config = self._groups.get(name)
        group = self._clients.consumer_group(name)
        if group is None or (config is not None and not config.notify_consumer_ids_changed_enable):
            return
        self._quiet.add(name)
        self._quiet_until.append((trio.current_time() + WINDOW_S, name))
        self._wake.set()
        header = NotifyConsumerIdsChangedRequestHeader(name)
        for number, member in enumerate(list(group.members.values()), 1):
            # JSON, whatever the connection speaks: it is a request, and all clients read that.
            member.channel.push(NOTIFY_CONSUMER_IDS_CHANGED.oneway(header))
            if number % SLICE == 0:
                yield
