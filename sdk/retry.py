"""Which failures are worth another try. Pure.

An error says what became of its request (`Outcome`); `FailedTries` decides whether a send goes on. Reads may be asked
twice without harm: they go on while `passes` says so (see waiting.py). A send that may have been stored would be stored
twice, so its retries are for those tries; tries that stored nothing cost none of them.
"""

from enum import Enum, auto

from mqcommon.errors import (
    BrokerError,
    ConnectFailed,
    RemotingError,
    RouteNotFound,
    SkylarkError,
    TooManyRequests,
)
from remoting.protocol.codes import ResponseCode


class Outcome(Enum):
    """What a failed request did."""

    #: Nothing: it did not reach a server, or the server said that it does nothing now.
    NOTHING = auto()
    #: Perhaps what it was to do: the answer is missing, or is an error from the midst of the work.
    UNKNOWN = auto()
    #: Nothing, and it will do nothing at this server; another server may know better.
    REFUSED_HERE = auto()
    #: Nothing, and every server would say so.
    REFUSED = auto()


# The server did nothing with the request, for a reason that goes away.
_NOT_NOW = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.POLLING_FULL,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        ResponseCode.GO_AWAY,
    }
)
# RocketMQ's producer, too, tries another broker for these.
_REFUSED_HERE = frozenset(
    {
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)


def outcome_of(error: SkylarkError) -> Outcome:
    """What the request did that ended in ``error``."""
    match error:
        case ConnectFailed() | TooManyRequests():
            return Outcome.NOTHING
        case RemotingError():
            return Outcome.UNKNOWN
        case BrokerError(code=code) if code in _NOT_NOW:
            return Outcome.NOTHING
        case BrokerError(code=ResponseCode.SYSTEM_ERROR):
            return Outcome.UNKNOWN
        case BrokerError(code=code) if code in _REFUSED_HERE:
            return Outcome.REFUSED_HERE
        case RouteNotFound(is_passing=True):
            return Outcome.NOTHING
        case _:
            return Outcome.REFUSED


def passes(error: SkylarkError) -> bool:
    """Whether a read that ended in ``error`` may succeed later. An error in a server's answer is the answer."""
    return isinstance(error, RemotingError) or outcome_of(error) is Outcome.NOTHING


class FailedTries:
    """The tries of one send that failed. ``avoid`` has the brokers that failed it since all were last tried."""

    __slots__ = ("avoid", "count", "error", "refused", "unknown")

    def __init__(self) -> None:
        self.count = 0
        self.unknown = 0
        self.refused = 0
        self.avoid: tuple[str, ...] = ()
        self.error: SkylarkError | None = None

    def add(self, addr: str, error: SkylarkError, outcome: Outcome) -> None:
        """The try at ``addr`` ended in ``error``."""
        self.count += 1
        self.unknown += outcome is Outcome.UNKNOWN
        self.refused += outcome is Outcome.REFUSED_HERE
        self.error = error
        if addr not in self.avoid:
            self.avoid = (*self.avoid, addr)

    def may_go_on(self, outcome: Outcome, retries: int, *, elsewhere: bool) -> bool:
        """Whether there is another try after one that ended in ``outcome``, time permitting.

        ``retries`` bounds the tries that may have stored the message. When every broker has refused it (there is no
        ``elsewhere``), it is tried as often again: routes and permissions may just be changing.
        """
        if outcome is Outcome.REFUSED or self.unknown > retries:
            return False
        return elsewhere or outcome is not Outcome.REFUSED_HERE or self.refused <= retries
