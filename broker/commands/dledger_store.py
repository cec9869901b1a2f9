"""``broker dledger-init`` turns the store of an ordinary broker into the store of a DLedger group's first member.

The messages stay where they are: an entry of the group's log is made for each piece of the commit log. The member is
alone in its group at first; the others start with empty stores, join and copy the log.
Neighbours: replication/dledger/ (the files), docs/operate/dledger.md (the steps).
"""

from zlib import crc32

import click

from skylark.broker.commands.offline import absolute, errors_on_one_line, locked
from skylark.broker.replication.dledger.entry_file import IN_LOG
from skylark.broker.replication.dledger.group_store import is_group_store
from skylark.broker.replication.dledger.log_disk import first_state, open_index
from skylark.broker.replication.dledger.proposing import pieces
from skylark.broker.store.checkpoint import read_checkpoint
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.segment import file_names
from skylark.mqcommon.addresses import parse_peers
from skylark.mqcommon.disk.files import FileSystem, OsFiles
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.raft.messages import APPLICATION

# The term of the entries that are made for the messages of a store.
TERM = 1


@click.command("dledger-init")
@click.argument("store_dir")
@click.option("--d-leger-peers", "peers", required=True, help="as in the conf file of the member")
@click.option("--d-leger-self-id", "self_id", required=True, help="as in the conf file of the member")
def dledger_init(store_dir: str, peers: str, self_id: str) -> None:
    """Turn a store into the store of the first member of a new DLedger group. Its messages and metadata stay.

    STORE_DIR is the broker's storePathRootDir; the broker must be stopped. The other members start with empty stores.
    """
    with errors_on_one_line(store_dir):
        addrs = parse_peers(peers, "dLegerPeers", "members")
        if self_id not in addrs:
            raise UserError(f"dLegerSelfId: {self_id!r} is not in dLegerPeers, which has {', '.join(addrs)}")
        count = init_group(OsFiles(), absolute(store_dir), self_id, addrs[self_id])
        click.echo(f"{self_id} is the first member of its group, with {count} entries: start it, then the others")


def init_group(fs: FileSystem, root: str, node: str, addr: str) -> int:
    """Make the files of a group whose only member is ``node``, at ``addr``; returns how many entries there are.

    ``root`` is the store's directory. UserError when the store cannot become one of a group.
    """
    names = file_names(fs, f"{root}/commitlog")
    if not names:
        raise UserError(f"{root} holds no commit log: give the directory that storePathRootDir names")
    if is_group_store(fs, root):
        raise UserError(f"{root} is the store of a member of a DLedger group already")
    with locked(fs, root):
        known = read_checkpoint(fs, f"{root}/checkpoint")
        if known.log_offset is None or not known.clean:
            raise UserError(f"{root} was not closed cleanly: start its broker once without the group, and stop it")
        log = CommitLog(fs, f"{root}/commitlog", fs.size(f"{root}/commitlog/{names[0]}"))
        log.chain.load(known.log_offset)
        index = open_index(fs, root)
        index.begin(0, 0, log.start)
        for start, end in pieces(log, log.start, known.log_offset):
            index.append(TERM, APPLICATION, IN_LOG, end - start, crc32(log.blocks.read(start, end - start)))
        index.sync()
        # Write this file last: a store with this file belongs to a group.
        first_state(fs, root, node, addr, TERM, index)
        count = index.last
        index.close()
        log.close()
    return count
