"""Connections between processes: bytes come in order, late, in other pieces than they were sent, or not at all.

Each connection, and each direction of it, has its own delays, so a later connection may overtake an earlier one.
A break is seen by both ends at once, late, or never: then nothing but silence tells.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from tests.sim.scheduler import Process, Scheduler

# What the kernels and the wire hold; a sender that has so much under way waits.
WINDOW_BYTES = 4096
RESET_AFTER_S = 30.0
FAST = 1e9


class End:
    """One end of a connection; the process that owns it attaches itself."""

    def __init__(self, connection: "Connection", owner: Process, addr: str) -> None:
        self._connection = connection
        self.owner = owner
        self.addr = addr
        self.other: End
        self.closed = False
        self.under_way = 0
        self.next_arrival = 0.0
        self.on_data: Callable[[bytes], None] | None = None
        self.on_close: Callable[[], None] = _ignore
        self.on_room: Callable[[], None] | None = None
        # What came before the owner took the connection.
        self._early: list[bytes] = []

    @property
    def has_room(self) -> bool:
        return self.under_way < WINDOW_BYTES

    def attach(
        self, on_data: Callable[[bytes], None], on_close: Callable[[], None], on_room: Callable[[], None] | None = None
    ) -> None:
        """The owner takes the connection."""
        self.on_data, self.on_close, self.on_room = on_data, on_close, on_room
        early, self._early = self._early, []
        for data in early:
            self.arrived(data)

    def arrived(self, data: bytes) -> None:
        """Bytes, or with none the other end's close."""
        if self.on_data is None:
            self._early.append(data)
        elif self.closed:
            return
        elif data:
            self.on_data(data)
        else:
            self.closed = True
            self.on_close()

    def send(self, data: bytes) -> None:
        if data and not self.closed:
            self.under_way += len(data)
            self._connection.carry(self, data)

    def close(self) -> None:
        """Close the connection; bytes that were sent before still arrive."""
        if not self.closed:
            self.closed = True
            self._connection.carry(self, b"")


class Connection:
    """A simulated connection of two processes."""

    def __init__(self, network: "Network", client: Process, server: Process, addr: str) -> None:
        self._network = network
        self.ends = (End(self, client, addr), End(self, server, addr))
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]
        # Nothing arrives any more, and nobody is told.
        self.silent = False
        # A process behind a slow link gets this many bytes a second.
        self.rate = FAST if network.calm else network.random.choice((2_000, 20_000, FAST, FAST))

    def carry(self, sender: End, data: bytes) -> None:
        network, random = self._network, self._network.random
        whole, at = len(data), 0
        while True:
            size = whole - at if random.random() < 0.6 else random.randint(min(1, whole - at), whole - at)
            arrival = max(sender.next_arrival, network.scheduler.now + network.delay()) + size / self.rate
            sender.next_arrival = arrival
            number = network.scheduler.next_number()
            network.scheduler.at(arrival, partial(self._arrive, sender, data[at : at + size], number), number)
            at += size
            if at == whole:
                return

    def _arrive(self, sender: End, data: bytes, number: int) -> None:
        receiver = sender.other
        if self.silent:
            return
        if receiver.owner.frozen_until > self._network.scheduler.now:
            sender.next_arrival = max(sender.next_arrival, receiver.owner.frozen_until)
            # Bytes of a connection keep their order, however often the thaw is put off.
            self._network.scheduler.at(receiver.owner.frozen_until, partial(self._arrive, sender, data, number), number)
            return
        had_room = sender.has_room
        sender.under_way -= len(data)
        receiver.arrived(data)
        if sender.on_room is not None and not had_room and sender.has_room:
            sender.owner.later(0, sender.on_room)

    def lose(self, at_once: bool) -> None:
        """The connection breaks; both ends see it, or only time tells."""
        self.silent = True
        if at_once:
            for end in self.ends:
                end.owner.later(self._network.delay(), partial(self._told, end))

    def _told(self, end: End) -> None:
        end.arrived(b"")

    def owner_died(self, owner: Process, *, power_loss: bool) -> None:
        """A killed process' kernel closes for it; a machine without power says nothing until it is back."""
        for end in self.ends:
            if end.owner is owner:
                if power_loss:
                    self.silent = True
                    if self._network.random.random() < 0.5:
                        other = end.other
                        other.owner.later(RESET_AFTER_S * self._network.random.random(), partial(self._told, other))
                else:
                    end.close()
                end.closed = True


class Network:
    """Makes connections and breaks them."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.scheduler = scheduler
        self.random = random
        self.calm = False
        # Nobody reaches anybody before this time.
        self.down_until = 0.0
        self.connections: list[Connection] = []
        self._ports = 0
        self._slowness = random.choice((0.001, 0.01, 0.3))

    def delay(self) -> float:
        slow = 0.001 if self.calm else self._slowness
        return slow * (10 * self.random.random() if self.random.random() < 0.1 else self.random.random())

    def heal(self) -> None:
        """End all faults: from here on all connections are fast."""
        self.calm = True
        self.down_until = 0.0
        for connection in self.connections:
            connection.rate = FAST

    def connect(self, client: Process, server: Process) -> Connection | None:
        """A connection; None when no process listens."""
        if not server.alive or self.down_until > self.scheduler.now:
            return None
        self._ports += 1
        connection = Connection(self, client, server, f"10.0.0.1:{20_000 + self._ports}")
        self.connections = [
            each for each in self.connections if not each.silent and not all(end.closed for end in each.ends)
        ]
        self.connections.append(connection)
        return connection

    def died(self, process: Process, *, power_loss: bool) -> None:
        for connection in self.connections:
            connection.owner_died(process, power_loss=power_loss)


def _ignore(*_: object) -> None:
    """Nobody listens yet."""
