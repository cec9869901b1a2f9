"""Request 7120 of administrators to the leader of a group: show or change its members, or let another node lead."""

from skylark.mqcommon.addresses import is_address
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.raft.membership import Remove
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.raft import RaftMembers, RaftMembersRequestHeader
from skylark.remoting.raft.group import Group


async def do_members_request(group: Group, header: RaftMembersRequestHeader, timeout_ms: float) -> RaftMembers:
    """The members afterwards. Raises what the methods of ``group`` raise, and RequestRefused for a wrong request."""
    match header.action:
        case "list":
            await group.read(timeout_ms)
        case "add":
            if not is_address(header.address or ""):
                raise _wrong(f"address {header.address!r} is not HOST:PORT")
            await group.add(header.address or "", timeout_ms)
        case "remove":
            await group.change(Remove(header.node or ""), timeout_ms)
        case "transfer" if header.node != group.leader:
            await group.transfer(header.node or "", timeout_ms)
        case "transfer":
            await group.read(timeout_ms)  # this node leads already
        case _:
            raise _wrong(f"action {header.action!r} is none of list, add, remove, transfer")
    return RaftMembers(group.leader, dict(group.members.voters), dict(group.members.learners))


def _wrong(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, text)
