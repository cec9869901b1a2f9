"""The rooms of ``enableSlaveActingMaster``, out of the options. Without it the master alone is ever the lowest.

Neighbours: members.py (who acts), heartbeats.py, pre_online.py (of a master), hand_over.py (of a slave).
"""

import logging
from dataclasses import dataclass

from broker.identity import Identity
from broker.meta.metadata import Metadata
from broker.options import BrokerOptions
from broker.registration.heartbeats import Heartbeats
from broker.registration.pre_online import PreOnline
from broker.replication.hand_over import HandOver
from broker.replication.known_master import KnownMaster
from broker.replication.member_requests import MemberHandlers
from broker.replication.members import Members
from broker.store.store import MessageStore
from broker.tasks.persist import Persister
from broker.writing.acks import AckLedger
from remoting.net.server import Handler

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Acting:
    """What the broker runs, and what others look at."""

    members: Members
    handlers: dict[int, Handler]
    heartbeats: Heartbeats | None = None
    pre_online: PreOnline | None = None
    hand_over: HandOver | None = None


def build_acting(
    options: BrokerOptions,
    identity: Identity,
    store: MessageStore,
    metadata: Metadata,
    persister: Persister,
    master: KnownMaster | None,
    acks: AckLedger,
) -> Acting:
    """``master`` is None on a master."""
    members = Members(identity.broker_id)
    if not options.enable_slave_acting_master:
        if master is None:
            members.came_online()
        return Acting(members, {})
    heartbeats = Heartbeats(options, None if master is None else members)
    handlers = MemberHandlers(identity, store, master, heartbeats.ask_soon).handlers()
    if master is None:
        pre_online = PreOnline(identity, options, metadata, persister, members, acks)
        return Acting(members, handlers, heartbeats, pre_online=pre_online)
    _follow(members, master)
    return Acting(members, handlers, heartbeats, hand_over=HandOver(members, metadata.consumer_offsets))


def _follow(members: Members, master: KnownMaster) -> None:
    was_acting = False

    def changed() -> None:
        nonlocal was_acting
        master.lives(members.master_addr is not None)
        if members.is_acting != was_acting:
            was_acting = master.is_stood_in_for = members.is_acting
            if was_acting:
                logger.warning("this slave acts as the master: no member with a lower id lives")
            else:
                logger.info("this slave acts as the master no more: a member with a lower id lives")

    members.on_change.append(changed)
