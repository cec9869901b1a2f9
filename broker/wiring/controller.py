"""The parts of a broker whose master the Controllers choose."""

from collections.abc import Callable
from dataclasses import dataclass

from broker.part import Part
from broker.replication.autoswitch.enrolment import Enrolment
from broker.replication.autoswitch.epoch_requests import EpochHandlers
from broker.replication.autoswitch.log_epochs import LogEpochs
from broker.replication.autoswitch.member import Membership
from broker.replication.known_master import KnownMaster
from broker.wiring.core import Core
from broker.writing.elected import Elected
from remoting.protocol.bodies.data_version import DataVersion

EPOCH_FILE, IDENTITY_FILE = "epochFileCheckpoint", "brokerIdentity"


@dataclass(frozen=True)
class Controlled:
    """What a broker in Controller mode has besides the parts of others."""

    membership: Membership
    epochs: LogEpochs
    elected: Elected
    parts: tuple[Part, ...]


def wire_controller(core: Core, known: KnownMaster, elected: Elected) -> Controlled:
    """Make them. ``known`` gets the master's address. StoreCorrupt when the file of epochs is damaged."""
    options, identity, store, fs = core.options, core.identity, core.store, core.fs
    root, topics = options.store_path_root_dir, core.metadata.topics
    epochs = LogEpochs(fs, options.store_path_epoch_file or f"{root}/{EPOCH_FILE}", store.log)
    epochs.load()
    path = options.store_path_broker_identity or f"{root}/{IDENTITY_FILE}"

    def began(epoch: int) -> None:
        # NameServers believe the broker with the highest one.
        version = topics.data_version
        topics.take_version(DataVersion(epoch, core.clock.now_ms(), version.counter + 1))

    membership = Membership(
        options, identity, core.role, Enrolment(fs, path, identity, core.clock), epochs, elected, known,
        _end_of(core), began, core.open_client,
    )  # fmt: skip
    return Controlled(membership, epochs, elected, (membership, EpochHandlers(identity, epochs, store.log)))


def _end_of(core: Core) -> Callable[[], int]:
    return lambda: core.store.log.end
