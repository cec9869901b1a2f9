"""Requests that come late, twice, in another order or not at all, and connections whose bytes wait while they are cut.

A cut has a direction and an end. What comes while a connection is cut arrives afterwards, as TCP sends it again; so
bytes of a master that was replaced long ago still come.
"""

from collections import deque
from collections.abc import Callable
from random import Random

from tests.sim.scheduler import Event, Process, Scheduler


class Network:
    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.scheduler = scheduler
        self.random = random
        self.loss = random.choice((0.0, 0.0, 0.02, 0.15))
        self.repeats = random.choice((0.0, 0.02))
        self.slowest_s = random.choice((0.01, 0.01, 0.05, 0.4))
        # How many of the requests that meet a cut come afterwards; the others are lost.
        self._held = random.choice((0.0, 0.5, 0.9))
        self._cut_until: dict[tuple[str, str], float] = {}

    def delay(self) -> float:
        slow = 8 if self.random.random() < 0.05 else 1
        return self.slowest_s * self.random.random() * slow

    def cut(self, sender: str, receiver: str, seconds: float) -> None:
        self._cut_until[sender, receiver] = self.scheduler.now + seconds

    def heal(self) -> None:
        self._cut_until.clear()
        self.loss = self.repeats = 0.0
        self.slowest_s = 0.01

    def open_at(self, sender: Process, receiver: Process) -> float:
        """When bytes pass again; 0 when they do."""
        until = self._cut_until.get((sender.name, receiver.name), 0.0)
        return until if until > self.scheduler.now else 0.0

    def carry(self, sender: Process, receiver: Process, arrived: Event, *, may_repeat: bool = True) -> None:
        """One message: ``arrived`` at the receiver, if it lives then."""
        while True:
            if self.random.random() >= self.loss:
                self.scheduler.at(self.scheduler.now + self.delay(), lambda: self._arrive(sender, receiver, arrived))
            if not may_repeat or self.random.random() >= self.repeats:
                return

    def _arrive(self, sender: Process, receiver: Process, arrived: Event) -> None:
        open_at = self.open_at(sender, receiver)
        if not open_at:
            receiver.at(self.scheduler.now, arrived)
        elif self.random.random() < self._held:
            # The connection on which it waits may be an old one, whose bytes come long after the bytes of the next
            # connection.
            late_s = self.random.choice((0.0, 0.0, 6.0)) * self.random.random()
            self.scheduler.at(open_at + self.delay() + late_s, lambda: self._arrive(sender, receiver, arrived))


class Connection:
    """Bytes between two processes, in order. Each end sets ``on_data`` and ``on_close``."""

    def __init__(self, network: Network, client: Process, server: Process) -> None:
        self.ends = (End(self, client), End(self, server))
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]
        self.network = network
        self._lives = (client.life, server.life)

    def died(self, process: Process, *, silently: bool) -> None:
        """The process is dead: its kernel says so, or the machine is silent."""
        for end in self.ends:
            if end.owner is process:
                end.lose_some()
                if not silently:
                    end.close()
                end.is_closed = True


class End:
    def __init__(self, connection: Connection, owner: Process) -> None:
        self._connection = connection
        self.owner = owner
        self.other: End
        self.is_closed = False
        #: None until the owner has taken the connection.
        self.on_data: Callable[[bytes], None] | None = None
        self.on_close: Event = _nothing
        # What is on its way to the other end; None is the close.
        self._under_way: deque[bytes | None] = deque()
        self._last_at = 0.0

    def send(self, data: bytes) -> None:
        if data and not self.is_closed:
            random = self._connection.network.random
            at = len(data) if random.random() < 0.7 else random.randint(len(data) // 2, len(data))
            self._send(data[:at])
            if at < len(data):
                self._send(data[at:])

    def lose_some(self) -> None:
        """Lose the end of the bytes that are under way, from any place on, also within a record."""
        random = self._connection.network.random
        for at in range(random.randint(0, len(self._under_way)), len(self._under_way)):
            self._under_way[at] = b""

    def close(self) -> None:
        """Close the connection; bytes that were sent before still arrive."""
        if not self.is_closed:
            self.is_closed = True
            self._send(None)

    def _send(self, data: bytes | None) -> None:
        network = self._connection.network
        self._under_way.append(data)
        self._last_at = max(self._last_at, network.scheduler.now + network.delay())
        network.scheduler.at(self._last_at, self._pass)

    def _pass(self) -> None:
        network, receiver = self._connection.network, self.other.owner
        wait_until = network.open_at(self.owner, receiver) or receiver.frozen_until
        if wait_until > network.scheduler.now:
            network.scheduler.at(wait_until, self._pass)
            return
        if self.other.on_data is None and not self.other.is_closed and receiver.alive:
            network.scheduler.at(network.scheduler.now + 0.01, self._pass)
            return
        data = self._under_way.popleft()
        if self.other.is_closed or self.other.on_data is None:
            return
        if data is None:
            self.other.is_closed = True
            self.other.on_close()
        elif data:
            self.other.on_data(data)


def _nothing() -> None:
    """Nobody listens yet."""
