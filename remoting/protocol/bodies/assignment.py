"""How groups consume topics (401, 402), and which queues the broker assigns to a member of a group (400)."""

from dataclasses import dataclass
from typing import Final

from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import INT, TEXT, Kind, body_of, choice, list_of, map_of, read_queue, write_queue

PULL: Final = "PULL"
POP: Final = "POP"
BROADCASTING: Final = "BROADCASTING"

_QUEUE = Kind(read_queue, write_queue, lambda: MessageQueue("", "", 0))


@dataclass(slots=True)
class MessageRequestMode(Body):
    """How a group consumes a topic: PULL or POP; ``pop_share_queue_num`` is of POP."""

    consumer_group: str = member(TEXT, "")
    topic: str = member(TEXT, "")
    mode: str = member(TEXT, "PULL")
    pop_share_queue_num: int = member(INT, 0)


@dataclass(slots=True)
class MessageRequestModes(Body):
    """402: by topic and group."""

    message_request_mode_map: dict[str, dict[str, MessageRequestMode]] = member(
        map_of(map_of(body_of(MessageRequestMode)))
    )


@dataclass(slots=True)
class QueryAssignmentRequestBody(Body):
    """400: a member of a group asks for its queues. ``strategy_name``: AVG or AVG_BY_CIRCLE."""

    topic: str = member(TEXT, "")
    consumer_group: str = member(TEXT, "")
    client_id: str = member(TEXT, "")
    strategy_name: str = member(TEXT, "")
    message_model: str = member(choice("BROADCASTING", "CLUSTERING"), "CLUSTERING")


@dataclass(slots=True)
class MessageQueueAssignment(Body):
    """A queue, and how it is consumed."""

    message_queue: MessageQueue = member(_QUEUE)
    mode: str = member(TEXT, PULL)


@dataclass(slots=True)
class QueryAssignmentResponseBody(Body):
    """The answer to 400; None when the broker cannot tell. The member then keeps the queues that it has."""

    message_queue_assignments: list[MessageQueueAssignment] | None = member(
        list_of(body_of(MessageQueueAssignment)), None
    )
