"""A group of nodes on a network that delays, loses, repeats and cuts, with clients, an administrator and misfortune."""

from collections.abc import Callable
from random import Random

from skylark.mqcommon.raft.membership import AddLearner, Members, Promote, Remove
from skylark.mqcommon.raft.messages import RaftMessage
from tests.sim.raft.checks import Checks
from tests.sim.raft.node import Node
from tests.sim.scheduler import Scheduler

TROUBLE_MS = 2000
# Then everything works again, and within this time a leader must be there and everything it was given committed.
PEACE_MS = 4000


class Group:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.scheduler = Scheduler()
        self.checks = Checks()
        self.trace: list[str] = []
        self.nodes: dict[str, Node] = {}
        self.lost: set[str] = set()  # ids whose disks are gone
        self._cut: set[tuple[str, str]] = set()
        self._loss = self.random.choice((0.0, 0.02, 0.2))
        self._slowest_ms = self.random.choice((2, 8, 30))
        self._next = 0
        self._value = 0
        names = [self._new_name() for _ in range(self.random.choice((1, 2, 3, 3, 3, 5, 5)))]
        members = Members(dict.fromkeys(names, ""))
        for name in names:
            self._add(name, members)

    def run(self) -> None:
        self._plan(self._clients, 2, 30)
        self._plan(self._misfortune, 5, self.random.choice((150, 300, 500)))
        self._plan(self._administer, 20, 250)
        self.scheduler.run_until(TROUBLE_MS)
        self._note("peace")
        self._cut = set()
        self._loss, self._slowest_ms = 0.0, 2
        for node in self.nodes.values():
            node.frozen_until = 0.0
            if not node.alive:
                node.start()
        self._check_peace()

    # The network.

    def send(self, message: RaftMessage) -> None:
        while True:
            if self.random.random() >= self._loss and (message.sender, message.to) not in self._cut:
                delay = self.random.random() * self._slowest_ms
                self.scheduler.at(self.scheduler.now + delay, lambda: self._deliver(message))
            if self.random.random() >= self._loss:
                return  # else once more

    def _deliver(self, message: RaftMessage) -> None:
        node = self.nodes.get(message.to)
        if node is not None and (message.sender, message.to) not in self._cut:
            node.at(self.scheduler.now, lambda: node.receive(message))

    # What happens.

    def _plan(self, event: Callable[[], None], least_ms: float, most_ms: float) -> None:
        def come() -> None:
            if self.scheduler.now < TROUBLE_MS:
                event()
                self.scheduler.at(self.scheduler.now + self.random.uniform(least_ms, most_ms), come)

        self.scheduler.at(self.random.uniform(least_ms, most_ms), come)

    def _clients(self) -> None:
        # Deposed leaders that do not know it are the most instructive.
        leaders = [node for node in self.nodes.values() if node.alive and node.raft.is_leader]
        node = self.random.choice(leaders) if leaders and self.random.random() < 0.7 else self._some_node()
        if node.frozen_until > self.scheduler.now or not node.alive:
            return
        for _ in range(self.random.choice((1, 1, 3, 12))):
            if self.random.random() < 0.5:
                self._value += 1
                node.write(b"%d" % self._value)
            else:
                node.read()

    def _misfortune(self) -> None:
        kinds = (
            self._crash,
            self._crash_leader,
            self._crash_all,
            self._freeze,
            self._part,
            self._isolate_leader,
            self._isolate_leader,
            self._lose_disk,
            self._damage_log,
            self._lose_leader,
            self._compact,
        )
        self.random.choice(kinds)(self._some_node())

    def _some_node(self) -> Node:
        return self.random.choice(list(self.nodes.values()))

    def _crash(self, node: Node) -> None:
        if not node.alive:
            return
        self._note(f"{node.name} crashes")
        node.crash()
        self.scheduler.at(self.scheduler.now + self.random.uniform(1, 150), lambda: self._restart(node))

    def _crash_leader(self, node: Node) -> None:
        self._crash(self.leader() or node)

    def _crash_all(self, _: Node) -> None:
        if self.random.random() < 0.3:
            for node in self.nodes.values():
                self._crash(node)

    def _restart(self, node: Node) -> None:
        if not node.alive and node.name in self.nodes:
            self._note(f"{node.name} starts")
            node.start()

    def _lose_leader(self, node: Node) -> None:
        if node.alive and node.frozen_until <= self.scheduler.now:
            self._note(f"{node.name} cannot reach its leader")
            node.raft.unreachable(node.raft.leader)

    def _freeze(self, node: Node) -> None:
        self._note(f"{node.name} freezes")
        node.frozen_until = self.scheduler.now + self.random.uniform(10, 250)

    def _part(self, _: Node) -> None:
        """Two sides that do not hear each other, or only one of them."""
        names = list(self.nodes)
        side = set(self.random.sample(names, self.random.randint(0, len(names))))
        both = self.random.random() < 0.7
        self._cut_for_a_while(
            {(a, b) for a in names for b in names if (a in side) != (b in side) and (both or a in side)}
        )
        self._note(f"cut: {', '.join(sorted(side)) or 'nothing'}{'' if both else ' (one way)'}")

    def _cut_for_a_while(self, cut: set[tuple[str, str]]) -> None:
        self._cut = cut
        self.scheduler.at(self.scheduler.now + self.random.uniform(50, 500), lambda: self._heal(cut))

    def _heal(self, cut: set[tuple[str, str]]) -> None:
        if self._cut is cut:
            self._note("healed")
            self._cut = set()

    def _isolate_leader(self, node: Node) -> None:
        leader = self.leader() or node
        self._note(f"{leader.name} isolated")
        self._cut_for_a_while({(a, b) for a in self.nodes for b in self.nodes if a != b and leader.name in (a, b)})

    def _compact(self, node: Node) -> None:
        if node.alive:
            node.compact(self.random.choice((0, 0, 3, 10)))

    def _lose_disk(self, node: Node) -> None:
        """A disk dies, but never the disk of a second voter; another node takes the node's place."""
        if self._may_lose_a_disk():
            self._note(f"{node.name} loses its disk")
            node.end()
            self._give_up(node)

    def _may_lose_a_disk(self) -> bool:
        views = [set(other.raft.members.voters) for other in self.nodes.values()]
        return all(view == views[0] for view in views) and len(views[0]) >= 3 and not views[0] & self.lost

    def _give_up(self, node: Node) -> None:
        del self.nodes[node.name]
        self.lost.add(node.name)

    def _damage_log(self, node: Node) -> None:
        """A node dies, and its log is cut between two records: a start that sees that is a lost disk."""
        if node.alive and self._may_lose_a_disk():
            self._note(f"{node.name} dies, and its log is cut")
            node.crash()
            node.disk.damage(self.random)
            if node.disk.is_short:
                self._give_up(node)
            else:
                self._restart(node)

    # The administrator: replaces what is lost, and moves members about.

    def _administer(self) -> None:
        leader = self.leader()
        if leader is None or leader.frozen_until > self.scheduler.now:
            return
        members = leader.raft.members
        gone = [name for name in members.all if name in self.lost]
        learners = [name for name in members.learners if name not in self.lost]
        if gone:
            self._note(f"remove {gone[0]}")
            leader.change(Remove(gone[0]))
        elif learners and self.random.random() < 0.6:
            self._note(f"promote {learners[0]}")
            leader.change(Promote(learners[0]))
        elif self.random.random() < 0.4:
            to = self.random.choice(list(members.voters))
            self._note(f"transfer to {to}")
            leader.transfer(to)
        elif len(members.all) < 4 or (len(members.all) < 6 and self.random.random() < 0.3):
            node = self._add(self._new_name(), Members())
            self._note(f"add {node.name}")
            leader.change(AddLearner(node.name, ""))
        elif len(members.voters) > 2:
            name = self.random.choice(list(members.all))
            self._note(f"remove {name}")
            leader.change(Remove(name))

    def leader(self) -> Node | None:
        """The node that says it leads; of several nodes the node with the highest term."""
        leading = [node for node in self.nodes.values() if node.alive and node.raft.is_leader]
        return max(leading, key=lambda node: node.raft.term, default=None)

    def _new_name(self) -> str:
        self._next += 1
        return f"n{self._next}"

    def _add(self, name: str, members: Members) -> Node:
        node = Node(self.scheduler, Random(self.random.random()), name, self.checks, self.send)
        node.disk.snapshot = type(node.disk.snapshot)(0, 0, members, b"")
        self.nodes[name] = node
        node.start()
        return node

    def _note(self, text: str) -> None:
        self.trace.append(f"{self.scheduler.now:.0f} {text}")

    # The end.

    def _check_peace(self) -> None:
        while self.scheduler.now < TROUBLE_MS + PEACE_MS:
            self.scheduler.run_until(self.scheduler.now + 200)
            leader = self.leader()
            if leader is not None and self._works(leader):
                return
        raise AssertionError("no leader serves all members although everything works")

    def _works(self, leader: Node) -> bool:
        """Whether ``leader`` writes and reads, and all members have got everything."""
        done = self.checks.done
        leader.write(b"last")
        leader.read()
        self.scheduler.run_until(self.scheduler.now + 200)
        if self.checks.done < done + 2:
            return False
        there = [self.nodes[name] for name in leader.raft.members.all if name not in self.lost]
        return all((node.applied, node.state) == (leader.applied, leader.state) for node in there)
