"""The nodes of a Raft group: messages (7110; remoting/raft/codec.py reads the body), and how a node finds its group."""

from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.raft import (
    RaftJoinHeader,
    RaftMessagesHeader,
    RaftStatusHeader,
    RaftStatusRequestHeader,
)
from remoting.protocol.requests.request import NOTHING, Request

RAFT_MESSAGES = Request(RequestCode.RAFT_MESSAGES, RaftMessagesHeader, bytes, NOTHING, NOTHING, may_be_oneway=True)
RAFT_STATUS = Request(RequestCode.RAFT_STATUS, RaftStatusRequestHeader, NOTHING, RaftStatusHeader, NOTHING)
# Each answer is a step on the way: the node asks again until it is a voter.
RAFT_JOIN = Request(RequestCode.RAFT_JOIN, RaftJoinHeader, NOTHING, NOTHING, NOTHING)
