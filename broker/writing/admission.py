"""Whether a message may come in: all reasons against it are collected here, and give one verdict. Pure.

`Reason` lists the reasons that begin and end, with who sets and who clears each of them. Three more are true or false
at the moment of a put, so `Admission` looks at `Copies` for each message of a client: the lease of an elected master
(of a Controller, or in a DLedger group), how many answers wait, and how many brokers are in sync.

Refused elsewhere: a message that no broker would store, or for a topic that is unknown or closed (send_handlers.py,
writer.py); other requests that a slave leaves to its master (replication/set_requests.py); all requests to a server
that stops (remoting/net/server.py); a put whose file cannot be made, which only the store can find out (DiskFull).

The store itself checks no reason: it stores every message it is given, as it does for a slave's replica and for tools.
Neighbours: writer.py asks for each message, send_handlers.py for each request; durability.py implements `Copies`.
delivery/pop/log.py and delivery/recall.py ask whether this broker stores messages at all; metrics/ shows `no_room`.
"""

from enum import Enum, auto
from typing import Protocol

from skylark.broker.writing.elected import Elected
from skylark.broker.writing.refusals import no_room_refusal
from skylark.broker.writing.waits import skips_waiting
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.names import DLQ_RESENT_TOPIC
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.sends import NO_MESSAGES, NOT_SAFE_HERE


class Reason(Enum):
    """A reason that holds from `Admission.refuse` to `Admission.allow`.

    ================= ========================================== =================================================
    reason            set                                        cleared
    ================= ========================================== =================================================
    NOT_MASTER        wiring/core.py: the role is not MASTER     wiring/core.py: the role is MASTER
    TOPIC_DELETION    wiring/replication.py: a new master has    wiring/replication.py: tasks/delete_topics.py has
                      deletions of topics to finish              tried all of them; or a new master has none
    BUCKET            tier/guard.py: the store does not fit the  tier/guard.py: it fits, or this broker is no master
                      bucket of the set
    DRAIN             admin/draining.py: the time that clients   admin/draining.py: the drain was ended
                      have to find other brokers is over
    DISK_FULL         tasks/clean.py: the disk is too full       tasks/clean.py: the disk has room
    ENTRIES_UNWRITTEN tasks/flush.py: queue entries cannot be    tasks/flush.py: a checkpoint has written them
                      written; wiring/core.py: nor at the start
    ENTRIES_WAITING   tasks/flush.py: too many queue entries     tasks/flush.py: these are written
                      wait in memory for a slow disk
    ================= ========================================== =================================================
    """

    #: Refuses every message. If several reasons hold, the producer gets the first in the order of this class.
    NOT_MASTER = auto()
    #: Refuses every message: a new message in a queue of the deleted topic would keep the queue's old messages alive.
    TOPIC_DELETION = auto()
    #: Refuses every message: it would get the offsets of messages that the bucket has.
    BUCKET = auto()
    #: Refuses sends of producers. The broker still stores what it delivers itself.
    DRAIN = auto()
    # The last three refuse every message that nothing else refuses. The producer gets the oldest of the three.
    DISK_FULL = auto()
    ENTRIES_UNWRITTEN = auto()
    ENTRIES_WAITING = auto()


_OF_ROLE = (Reason.NOT_MASTER, Reason.TOPIC_DELETION, Reason.BUCKET)
_OF_ROOM = (Reason.DISK_FULL, Reason.ENTRIES_UNWRITTEN, Reason.ENTRIES_WAITING)
_ANSWERS = {
    Reason.NOT_MASTER: (NO_MESSAGES.code, NO_MESSAGES.remark),
    Reason.TOPIC_DELETION: (NO_MESSAGES.code, "the deletion of a topic is finished first, a moment only"),
    Reason.BUCKET: (NO_MESSAGES.code, "the store lacks messages that its bucket has: see the log of the broker"),
    Reason.DRAIN: (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "this broker is drained and takes no messages: refresh the route",
    ),
}
# After this refusal clients continue at another broker, or here after an election.
_NO_LEASE = (
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "service not available now. It may be caused by one of the following reasons: the Controller has not confirmed"
    " lately that this broker is the master, or its DLedger group has elected another one",
)


class Copies(Protocol):
    """The present knowledge about slaves, and about this broker's right to be the master; `Durability` has it."""

    #: The lease of this broker as the master; None if no other broker can be elected.
    elected: Elected | None
    #: The most answers that may wait.
    max_waiting: int

    def __len__(self) -> int:
        """How many answers wait."""

    def are_enough(self, end: int) -> bool:
        """Whether minInSyncReplicas brokers, this one included, are in sync with a log that ends at ``end``."""

    def are_too_few(self, end: int) -> bool:
        """Whether a send that is stored now, in a log that ends at ``end``, would get SLAVE_NOT_AVAILABLE."""


class Admission:
    """The reasons that hold for one broker now, and their verdict about a message."""

    def __init__(self, copies: Copies | None = None) -> None:
        """``copies``: None if sends never wait for slaves, whatever the role."""
        self._copies = copies
        # In the order in which they began.
        self._reasons: dict[Reason, str] = {}
        self._decide()

    def _decide(self) -> None:
        """Compute the flags at each change of the reasons: there are many messages between two changes."""
        reasons = self._reasons
        self._of_role = next((_ANSWERS[reason] for reason in _OF_ROLE if reason in reasons), None)
        drained = _ANSWERS[Reason.DRAIN] if Reason.DRAIN in reasons else None
        self._of_sends = self._of_role or drained
        #: Whether none of the checks below would refuse any message: the Writer tests only this flag for each message.
        self.is_open = self._copies is None and not reasons
        #: Whether `check_send` would refuse no request.
        self.takes_sends = self._of_sends is None
        #: Whether this broker stores no message at all because of its role.
        self.takes_none = self._of_role is not None
        #: Why the store may get no messages, whatever the role; "" if it may.
        self.no_room = next((why for reason, why in reasons.items() if reason in _OF_ROOM), "")

    # --- reasons in

    def refuse(self, reason: Reason, why: str = "") -> None:
        """Let ``reason`` hold from now on. ``why``: what producers and logs say, for a reason of the disk."""
        self._reasons[reason] = why or reason.name
        self._decide()

    def allow(self, reason: Reason) -> None:
        """End ``reason``, if it holds."""
        self._reasons.pop(reason, None)
        self._decide()

    def holds(self, reason: Reason) -> bool:
        """Whether ``reason`` holds now."""
        return reason in self._reasons

    def why(self, reason: Reason) -> str:
        """The text with which ``reason`` began; "" if it does not hold."""
        return self._reasons.get(reason, "")

    # --- the verdict out

    def check_send(self, topic: str | None) -> None:
        """RequestRefused for a producer's request to ``topic``; asked first of all.

        A drained broker still takes the marks that record which of its dead letters were resent: these can still be
        read and resent, and without the marks a second resend would repeat them.
        """
        refusal = self._of_role if topic == DLQ_RESENT_TOPIC else self._of_sends
        if refusal is not None:
            raise RequestRefused(*refusal)

    def check_message(self, end: int, properties: bytes) -> None:
        """RequestRefused for a client's message, to be put at ``end`` of the log, that may not become safe."""
        if self._of_role is not None:
            raise RequestRefused(*self._of_role)
        copies = self._copies
        if copies is None:
            return
        # Without its lease this broker may not be the master any more: a message that it stores now may be cut off
        # again, whether the producer waits or not. So the lease is checked first.
        elected = copies.elected
        if elected is not None and not elected.is_leased:
            raise RequestRefused(*_NO_LEASE)
        if skips_waiting(properties):
            return
        # The memory of waits is bounded here, before a message is stored: afterwards it cannot be refused.
        if len(copies) >= copies.max_waiting:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy, start flow control for a while: {len(copies)} sends wait for slaves",
            )
        if not copies.are_enough(end):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")

    def check_safe(self, end: int) -> None:
        """RequestRefused if a message, to be put at ``end`` of the log, would lack copies on slaves."""
        if self._copies is not None and self._copies.are_too_few(end):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, NOT_SAFE_HERE)

    def check_own(self) -> None:
        """RequestRefused for a message of the broker itself, or a message that was admitted before."""
        if self._of_role is not None:
            raise RequestRefused(*self._of_role)

    def check_room(self) -> None:
        """RequestRefused for any message, while there is no room.

        Asked after the checks of the Writer. The store checks its limits of size after it.
        """
        if self.no_room:
            raise no_room_refusal(self.no_room)
