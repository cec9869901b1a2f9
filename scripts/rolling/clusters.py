"""The clusters whose rolling update is simulated: the StatefulSets of each mode, with the conf files of conf/."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scripts.rolling.pods import Network, Pod, StatefulSet

SINGLE, SETS, CONTROLLER, DLEDGER = MODES = ("single", "2m-2s", "controller", "dledger")
# Stand for the NameServers: for brokers all that run, for clients those that are ready.
ALL_NAMESRVS, NAMESRV = "namesrv-headless", "namesrv"
# Small files, so that a cluster fits on a full laptop, and the machine's disk and the hour do not matter.
STORE = (
    "--mapped-file-size-commit-log", str(16 * 1024 * 1024),
    "--max-hash-slot-num", "50000",
    "--max-index-num", "100000",
    "--disk-max-used-space-ratio", "95",
    "--disk-space-clean-forcibly-ratio", "100",
    "--disk-space-warning-level-ratio", "100",
    "--clean-file-forcibly-enable", "false",
    "--file-reserved-time", "1000000",
)  # fmt: skip
# As deploy/kubernetes has it, but a fifth of its times.
LOOKUP_MS, WAIT_FOR_BROKERS_S = 1_000, 4
# Members of a DLedger group and of a Controller set have these.
MEMBERS = 3


@dataclass
class Cluster:
    """The StatefulSets of a mode. Those of ``together`` are updated at the same time, each list one after the other."""

    mode: str
    network: Network
    namesrvs: StatefulSet
    controllers: StatefulSet | None
    #: By the name of the broker set.
    brokers: Mapping[str, StatefulSet] = field(default_factory=dict)

    @property
    def nameserver(self) -> str:
        """What clients are given."""
        return f"{NAMESRV}:{self.network.namesrv_port}"

    @property
    def together(self) -> Sequence[Sequence[StatefulSet]]:
        """What is updated at the same time: `kubectl apply` waits for none of them."""
        others = [[each] for each in (self.namesrvs, self.controllers) if each is not None]
        # deploy/kubernetes updates one broker set after the other.
        return [*others, list(self.brokers.values())]

    @property
    def controller_addrs(self) -> list[str]:
        """Where the Controllers are now."""
        pods = self.controllers.pods if self.controllers is not None else ()
        return [f"{pod.address}:{self.network.peers_port}" for pod in pods]

    @property
    def in_order(self) -> Sequence[StatefulSet]:
        """The StatefulSets in the order of an upgrade (docs/operate/upgrade.md)."""
        return [each for sets in self.together for each in sets]

    @property
    def pods(self) -> list[Pod]:
        """All pods, in the order in which they are started."""
        return [pod for each in self.in_order for pod in each.pods]


def cluster(mode: str, network: Network, *, moves: bool = True) -> Cluster:
    """The cluster of a mode, which does not run yet. Without ``moves`` pods keep their addresses."""
    made = Cluster(mode, network, StatefulSet([]), None)
    made.namesrvs = StatefulSet([_namesrv(network, f"namesrv-{number}", moves) for number in range(2)])
    if mode == CONTROLLER:
        made.controllers = StatefulSet([_controller(network, number, moves) for number in range(MEMBERS)])
    sets = {SINGLE: {"broker": 1}, SETS: {"broker-a": 2, "broker-b": 2}}.get(mode, {"broker-a": MEMBERS})
    made.brokers = {
        name: StatefulSet([_broker(network, mode, name, number, moves) for number in range(count)])
        for name, count in sets.items()
    }
    return made


def _health(network: Network, address: str) -> Sequence[str]:
    return ("--health-port", str(network.health_port), "--health-host", address)


def _namesrv(network: Network, name: str, moves: bool) -> Pod:
    def options(address: str) -> Sequence[str]:
        return (
            "--listen-port", str(network.namesrv_port),
            "--bind-address", address,
            "--kv-config-path", str(network.home / f"{name}.json"),
            "--need-wait-for-service", "true",
            "--wait-seconds-for-service", str(WAIT_FOR_BROKERS_S),
            *_health(network, address),
        )  # fmt: skip

    return Pod(network, name, "namesrv", options, [ALL_NAMESRVS], [NAMESRV], moves=moves)


def _peers(network: Network, kind: str) -> str:
    return ";".join(f"n{number}-{kind}-{number}:{network.peers_port}" for number in range(MEMBERS))


def _controller(network: Network, number: int, moves: bool) -> Pod:
    def options(address: str) -> Sequence[str]:
        return (
            "-c", f"conf/controller/controller-n{number}.conf",
            "--controller-d-leger-peers", _peers(network, "controller"),
            "--controller-store-path", str(network.home / f"controller-{number}"),
            "--bind-address", address,
            *_health(network, address),
        )  # fmt: skip

    directory = network.home / f"controller-{number}"
    return Pod(network, f"controller-{number}", "controller", options, data=directory, moves=moves)


def _mode_options(network: Network, mode: str, set_name: str, number: int) -> Sequence[str]:
    if mode == SETS:
        return ("-c", f"conf/2m-2s-sync/{set_name}{'-s' if number else ''}.properties")
    if mode == CONTROLLER:
        addresses = ";".join(f"controller-{each}:{network.peers_port}" for each in range(MEMBERS))
        return ("-c", f"conf/controller/broker-n{number}.conf", "--controller-addr", addresses)
    if mode == DLEDGER:
        peers = _peers(network, set_name)
        # On loopback all connections come from 127.0.0.1, which is no member's address.
        return ("-c", f"conf/dledger/broker-n{number}.conf", "--d-leger-peers", peers, "--ha-allow-plain-peers", "true")
    return ("-c", "conf/broker.conf")


def _broker(network: Network, mode: str, set_name: str, number: int, moves: bool) -> Pod:
    name = f"{set_name}-{number}"

    def options(address: str) -> Sequence[str]:
        return (
            *_mode_options(network, mode, set_name, number),
            "--broker-name", set_name,
            "--bind-address", address,
            "--broker-ip1", address,
            "--broker-ip2", address,
            "--listen-port", str(network.broker_port),
            "--ha-listen-port", str(network.slaves_port),
            "--fast-listen-port", "0",
            "--namesrv-addr", f"{ALL_NAMESRVS}:{network.namesrv_port}",
            "--fetch-namesrv-addr-interval", str(LOOKUP_MS),
            "--store-path-root-dir", str(network.home / name),
            *STORE,
            *_health(network, address),
        )  # fmt: skip

    return Pod(network, name, "broker", options, data=network.home / name, moves=moves)
