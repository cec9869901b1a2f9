"""The parts of a broker whose master the Controllers choose."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from broker.part import Part
from broker.replication.autoswitch.enrolment import Enrolment
from broker.replication.autoswitch.epoch_requests import EpochHandlers
from broker.replication.autoswitch.find import SwitchFinder
from broker.replication.autoswitch.frames import SlaveHello
from broker.replication.autoswitch.link import MasterEnd, Newcomer
from broker.replication.autoswitch.log_epochs import LogEpochs
from broker.replication.autoswitch.member import Membership
from broker.replication.autoswitch.session import SwitchDialogue, switch_sessions
from broker.replication.dialogue import Dialogue
from broker.replication.hello import NONCE_BYTES, Claim, LinkTerms
from broker.replication.known_master import KnownMaster
from broker.replication.member_requests import MemberHandlers
from broker.replication.pieces import bounds_of
from broker.replication.replica import Replica
from broker.replication.sides import Examine, NewMasterSide, Peer
from broker.tasks.truncate import LogTruncation
from broker.wiring.core import Core
from remoting.protocol.body import DataVersion

EPOCH_FILE, IDENTITY_FILE = "epochFileCheckpoint", "brokerIdentity"


@dataclass(frozen=True)
class Controlled:
    """What a broker in Controller mode has besides, or instead of, the parts of others."""

    membership: Membership
    finder: SwitchFinder
    new_session: NewMasterSide
    examine: Examine
    new_dialogue: Callable[[Replica], Dialogue]
    parts: tuple[Part, ...]


def wire_controller(core: Core, known: KnownMaster, by_namesrv: KnownMaster, terms: LinkTerms) -> Controlled:
    """Make them. ``known`` gets the master's address.

    StoreCorrupt when the file of epochs is damaged, ConfigError when the store is that of another broker.
    """
    elected = core.elected
    assert elected is not None
    options, identity, log, fs = core.options, core.identity, core.store.log, core.fs
    root, topics = options.store_path_root_dir, core.metadata.topics
    epochs = LogEpochs(fs, options.store_path_epoch_file or f"{root}/{EPOCH_FILE}", log)
    epochs.load()
    path = options.store_path_broker_identity or f"{root}/{IDENTITY_FILE}"
    enrolment = Enrolment(fs, path, identity, core.clock)
    enrolment.check()

    sync_flush = options.flush_disk_type == "SYNC_FLUSH"

    def began(epoch: int) -> None:
        # NameServers believe the broker with the highest one.
        version = topics.data_version
        topics.take_version(DataVersion(epoch, core.clock.now_ms(), version.counter + 1))

    membership = Membership(
        options, identity, core.role, enrolment, epochs, elected, core.acks, known,
        lambda: log.flushed if sync_flush else log.end, began, core.open_client,
    )  # fmt: skip

    def master_end(peer: Peer) -> MasterEnd:
        return MasterEnd(
            terms, lambda: bounds_of(log), epochs.now, epochs.last, lambda: elected.confirm_offset,
            os.urandom(NONCE_BYTES), peer.addr, peer.since,
        )  # fmt: skip

    async def examine(newcomer: Claim | Newcomer) -> str:
        assert isinstance(newcomer, Newcomer)
        return await membership.roster.objection(newcomer)

    cutter = LogTruncation(fs, root, core.store, core.flusher)

    async def cut(offset: int) -> None:
        await cutter.cut(offset)
        elected.cut(offset)
        # The next master's log may have new topics from there on.
        core.metadata.topics_to.put(min(core.metadata.topics_to.value, offset))

    def new_dialogue(replica: Replica) -> Dialogue:
        return SwitchDialogue(
            replica, terms, epochs,
            lambda: SlaveHello(options.sync_from_last_file, options.async_learner, core.role.now.broker_id),
            identity.addr, cut, elected.confirmed, sync_flush=sync_flush,
        )  # fmt: skip

    # Where the HA port is, is asked with a request that also tells a slave of a master. Only Controllers may do that.
    requests = MemberHandlers(core.role, identity, core.store, by_namesrv, membership.look_soon)
    return Controlled(
        membership,
        SwitchFinder(
            known, core.open_client, options.plain_hosts, must_prove=terms.must_prove or bool(terms.secret)
        ),
        switch_sessions(master_end, membership.followers), examine, new_dialogue,
        (membership, EpochHandlers(identity, epochs, log), requests),
    )  # fmt: skip
