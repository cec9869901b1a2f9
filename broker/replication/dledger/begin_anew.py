"""A member that has lost promised entries begins anew: its store is moved aside, and it joins with an empty store.

It does this only while the other members are a whole majority: then their disks have everything that was acknowledged.
Until then it waits, and its store is not changed. It never speaks under its old id again, see
`skylark.remoting.raft.bootstrap`.
"""

import logging
import os
from collections.abc import Mapping
from datetime import datetime

import trio

from skylark.broker.replication.dledger.group_store import DIRECTORY
from skylark.broker.store.aside import move_aside
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.raft.raft import majority
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.requests.raft import RaftStatusHeader
from skylark.remoting.raft.asking import ask_all

logger = logging.getLogger(__name__)

ASK_S = 0.2
# A member that waits for others logs that once in this number of tries.
TRIES_PER_LINE = 50


def can_begin_anew(peers: Mapping[str, str], root: str) -> bool:
    """Whether a group of these members has a majority without one of them, and the store in ``root`` can be moved."""
    # Where the log is a link to another disk, a new log would be on the wrong one.
    return len(peers) - 1 >= majority(len(peers)) and not os.path.islink(f"{root}/commitlog")


def are_whole(others: Mapping[str, RaftStatusHeader], size: int) -> bool:
    """Whether the ``others`` that answered are a majority of a group of ``size``, all with the same leader."""
    for status in others.values():
        leads = status.begun and status.node == status.leader
        followers = [each for each in others.values() if (each.leader, each.term) == (status.node, status.term)]
        if leads and len(followers) >= majority(size):
            return True
    return False


async def until_others_are_whole(client: RemotingClient, group: str, peers: Mapping[str, str], own: str) -> None:
    """Return when the other members are a majority without this one, ``own``, and have a leader."""
    others = {name: addr for name, addr in peers.items() if name != own}
    tries = 0
    while True:
        seen = await ask_all(client, group, others)
        if are_whole(seen, len(peers)):
            return
        if tries % TRIES_PER_LINE == 0:
            missing = [f"{name} ({addr})" for name, addr in others.items() if name not in seen or not seen[name].leader]
            logger.warning(
                "%s waits until the other members are a majority with a leader, before it joins them anew; missing: %s",
                own,
                ", ".join(missing) or "a common leader",
            )
        tries += 1
        await trio.sleep(ASK_S)


def set_aside(fs: FileSystem, clock: Clock, root: str) -> str:
    """Move the closed store in ``root`` aside; returns the directory to which it was moved. Blocks."""
    lock = fs.lock(f"{root}/lock")
    try:
        name = f"{root}/lost-{datetime.fromtimestamp(clock.now_ms() / 1000):%Y%m%d-%H%M%S}"
        aside, number = name, 1
        while fs.exists(aside):
            number += 1
            aside = f"{name}-{number}"
        # What the group keeps goes last: an interrupted move then leaves a store that has lost its log.
        move_aside(fs, root, aside, ("config", DIRECTORY))
    finally:
        lock.close()
    return aside
