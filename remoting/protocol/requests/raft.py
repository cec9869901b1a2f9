"""The nodes of a Raft group: messages (7110; remoting/raft/codec.py reads the body), how a node finds its group
(7111, 7112), an entry that a member of a DLedger group needs again (7113), and what administrators ask (7120).
"""

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import TEXT, Body, map_of, member
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.rights import UPDATE_CLUSTER
from skylark.remoting.protocol.scalars import read_flag, read_long, read_text


@lazy_dataclass(slots=True)
class RaftMessagesHeader(Header):
    """7110: messages between the nodes of a Raft group. ``addr``: where the sender, ``node``, listens."""

    group: str = required(read_text)
    node: str = required(read_text)
    addr: str = required(read_text)


@lazy_dataclass(slots=True)
class RaftStatusRequestHeader(Header):
    """7111: the group whose member is asked for its state."""

    group: str = required(read_text)


@lazy_dataclass(slots=True)
class RaftStatusHeader(Header):
    """The answer to 7111. ``begun``: whether the node keeps its votes on disk already. No leader: empty texts.

    ``client_addr``: where clients of the application reach this node, if not here. ``is_unfit``: another node should
    lead, if there is one that can.
    """

    node: str = required(read_text)
    begun: bool = required(read_flag)
    term: int = required(read_long)
    leader: str = required(read_text)
    leader_addr: str = required(read_text)
    client_addr: str | None = optional(read_text)
    is_unfit: bool | None = optional(read_flag)


@lazy_dataclass(slots=True)
class RaftJoinHeader(Header):
    """7112, to the leader: the node called ``name`` in the conf wants to be a member with the id ``node``."""

    group: str = required(read_text)
    name: str = required(read_text)
    node: str = required(read_text)
    addr: str = required(read_text)


@lazy_dataclass(slots=True)
class DledgerEntryRequestHeader(Header):
    """7113: the entry ``index`` of the log of a DLedger group."""

    group: str = required(read_text)
    index: int = required(read_long)


@lazy_dataclass(slots=True)
class DledgerEntryHeader(Header):
    """The answer to 7113: the fields of the entry's slot (broker/replication/dledger/entry_file.py)."""

    start: int = required(read_long)
    term: int = required(read_long)
    size: int = required(read_long)
    crc: int = required(read_long)
    chain: int = required(read_long)
    kind: int = required(read_long)
    place: int = required(read_long)


@lazy_dataclass(slots=True)
class RaftMembersRequestHeader(Header):
    """7120: list or change the members of a group.

    ``action``: list, add (``address``), remove or transfer (``node``).
    """

    action: str = required(read_text)
    node: str | None = optional(read_text)
    address: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class RaftMembers(Body):
    """The answer to 7120: addresses by node."""

    leader: str = member(TEXT, "")
    voters: dict[str, str] = member(map_of(TEXT))
    learners: dict[str, str] = member(map_of(TEXT))


RAFT_MESSAGES = Request(7110, RaftMessagesHeader, bytes, NOTHING, NOTHING, may_be_oneway=True)
RAFT_STATUS = Request(7111, RaftStatusRequestHeader, NOTHING, RaftStatusHeader, NOTHING)
# Each answer is a step on the way: the node asks again until it is a voter.
RAFT_JOIN = Request(7112, RaftJoinHeader, NOTHING, NOTHING, NOTHING)
# Among brokers of a DLedger group: the bytes of an entry that is damaged at the sender.
DLEDGER_ENTRY = Request(7113, DledgerEntryRequestHeader, NOTHING, DledgerEntryHeader, bytes)
# To a Controller, or to a broker of a DLedger group.
RAFT_MEMBERS = Request(7120, RaftMembersRequestHeader, NOTHING, NOTHING, RaftMembers, right=UPDATE_CLUSTER)
