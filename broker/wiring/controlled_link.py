"""The link of a set whose master the Controllers elect: epochs, membership, and both ends of the copying."""

import logging
import os
from collections.abc import Awaitable, Callable

from skylark.broker.replication.autoswitch.enrolment import Enrolment
from skylark.broker.replication.autoswitch.frames import SlaveHello
from skylark.broker.replication.autoswitch.link import ElectedLog, MasterEnd
from skylark.broker.replication.autoswitch.log_epochs import EpochHandlers, LogEpochs
from skylark.broker.replication.autoswitch.member import MemberLog, Membership, MemberState
from skylark.broker.replication.autoswitch.promised_end import PromisedEnd
from skylark.broker.replication.autoswitch.session import SlaveLog, SwitchDialogue, switch_sessions
from skylark.broker.replication.find_master import SwitchFinder
from skylark.broker.replication.hello import NONCE_BYTES
from skylark.broker.replication.known_master import KnownMaster
from skylark.broker.replication.link import Claim, Newcomer
from skylark.broker.replication.plain_dialogue import bounds_of
from skylark.broker.replication.replica import Replica
from skylark.broker.replication.session import Dialogue, Peer
from skylark.broker.replication.set_requests import MemberHandlers
from skylark.broker.replication.stats import SlaveProgress
from skylark.broker.wiring.core import Core
from skylark.broker.wiring.link_parts import (
    Link,
    began_leading,
    ha_port,
    ha_slaves,
    link_terms,
    log_cutter,
)
from skylark.remoting.net.transport import Listener

logger = logging.getLogger(__name__)

EPOCH_FILE, IDENTITY_FILE, PROMISED_FILE = "epochFileCheckpoint", "brokerIdentity", "promisedEnd"


def controlled_link(
    core: Core,
    known: KnownMaster,
    progress: SlaveProgress,
    listeners: list[Listener],
    listen: Callable[[], Awaitable[list[Listener]]],
) -> Link:
    """Make the link of a set with Controllers. ``known`` gets the master's address.

    StoreCorrupt when the file of epochs is damaged, ConfigError when the store belongs to another broker.
    """
    by_namesrv, terms = KnownMaster(), link_terms(core.options, core.tls)
    elected = core.elected
    assert elected is not None
    options, identity, log, fs = core.options, core.identity, core.store.log, core.fs
    root = options.store_path_root_dir
    epochs = LogEpochs(fs, options.store_path_epoch_file or f"{root}/{EPOCH_FILE}", log)
    epochs.load()
    path = options.store_path_broker_identity or f"{root}/{IDENTITY_FILE}"
    enrolment = Enrolment(fs, path, identity, core.clock)
    enrolment.check()
    promised = PromisedEnd(fs, f"{root}/{PROMISED_FILE}")
    if (lost := promised.open(log.raw_end)) and fs.exists(path):
        logger.error(
            "%s: it takes a new id, so that it is not elected with less than it confirmed. Its log stays, and the rest"
            " is copied from the master; until a broker leads that has everything, nobody does"
            " (docs/operate/controller.md)",
            lost,
        )
        enrolment.remove()
    elected.observers.insert(0, promised.promise)

    sync_flush = options.flush_disk_type == "SYNC_FLUSH"

    began = began_leading(core)
    membership = Membership(
        options,
        identity,
        enrolment,
        MemberState(core.role, elected, known),
        MemberLog(epochs, core.acks, lambda: log.flushed if sync_flush else log.end, began),
        core.open_client,
    )

    cut_log = log_cutter(core, elected)

    async def cut(offset: int) -> None:
        promised.cut(offset)
        await cut_log(offset)

    def master_end(peer: Peer) -> MasterEnd:
        served = ElectedLog(lambda: bounds_of(log), epochs.now, epochs.last, lambda: elected.confirm_offset)
        return MasterEnd(terms, served, os.urandom(NONCE_BYTES), peer.addr, peer.since)

    async def examine(newcomer: Claim) -> str:
        assert isinstance(newcomer, Newcomer)
        return await membership.registered_replicas.objection(newcomer)

    def new_dialogue(replica: Replica) -> Dialogue:
        return SwitchDialogue(
            SlaveLog(replica, epochs, cut, elected.confirmed, promised.promise),
            terms,
            lambda: SlaveHello(options.sync_from_last_file, options.async_learner, core.role.now.broker_id),
            identity.addr,
            lambda: membership.known_epoch,
            sync_flush=sync_flush,
        )

    # Slaves ask for the HA port with 906. The same request can also announce a master; here only Controllers may do
    # that, so announcements go to an object that nobody reads.
    requests = MemberHandlers(core.role, identity, core.store, by_namesrv, membership.ask_soon)
    finder = SwitchFinder(
        known, core.open_client, options.plain_hosts, must_prove=terms.must_prove or bool(terms.secret)
    )
    known.ask_again = membership.ask_soon
    sessions = switch_sessions(master_end, membership.followers)
    return Link(
        finder.changed,
        ha_port(core, listeners, listen, sessions, examine),
        ha_slaves(core, known, progress, finder.find, new_dialogue),
        membership.prepare_to_lead,
        by_namesrv,
        membership.wait_enrolled,
        (membership, EpochHandlers(identity, epochs, log), requests, promised),
        is_in_sync=None if options.async_learner else lambda: membership.is_in_sync,
        small_files=lambda: [epochs.as_small_file(), promised.as_small_file(), *enrolment.as_small_files()],
        term=lambda: max(epochs.last, 0),
    )
