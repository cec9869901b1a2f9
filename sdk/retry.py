"""Which failures are worth a retry, and reads that are retried until their timeout.

`outcome_of` says what a failed request did at the server. Reads can be repeated without harm: they are retried while
the error `is_transient`, until a timeout (`until_answered`), so that a restart of a server delays them but raises no
error. A repeated send may store its message twice. So the ``retries`` of a send limit the tries that may have stored
the message; tries that stored nothing do not count (`FailedTries`).
"""

from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeVar

import trio

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import (
    BrokerError,
    ConnectFailed,
    RemotingError,
    RouteNotFound,
    SkylarkError,
    TooManyRequests,
)
from skylark.remoting.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from skylark.sdk.producer.weak import WeakCopy


class Outcome(Enum):
    """What a failed request did at the server."""

    #: Nothing was done: the request did not reach a server, or the server cannot take it now. A retry may succeed.
    NOTHING = auto()
    #: The request may have been done: there was no answer, or the server failed while it worked on the request.
    UNKNOWN = auto()
    #: Nothing was done, and this server will refuse the request again; another server may accept it.
    REFUSED_HERE = auto()
    #: Nothing was done, and every server would refuse the request.
    REFUSED = auto()


# The server did nothing with the request, for a temporary reason.
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
# RocketMQ's producer also tries another broker for these.
_REFUSED_HERE = frozenset(
    {
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)

# ACL 1.0 refuses with SYSTEM_ERROR and the name of this Java class; the server did nothing with the request.
_ACCESS_REFUSED = "AclException"
# Fewer brokers than minInSyncReplicas would have had the message, so nothing was stored. A slave may join soon.
_TOO_FEW_IN_SYNC = "in-sync replicas not enough"
# Brokers refuse a queue that the topic does not have there: the client's route is old, or was a guess for a topic that
# was not registered yet.
_NO_SUCH_QUEUE = "queueId["
# A drained broker stays drained until it is stopped, or an administrator ends the drain.
_DRAINED = "this broker is drained"
# Brokers' answers, in lower case, to a client with wrong credentials. A retry, or another broker, does not help.
_NOT_SIGNED_RIGHT = ("check signature failed", "no acl config", "username cannot be null")


def outcome_of(error: SkylarkError) -> Outcome:
    """What a request that failed with ``error`` did at the server."""
    match error:
        case ConnectFailed() | TooManyRequests():
            return Outcome.NOTHING
        case RemotingError():
            return Outcome.UNKNOWN
        case BrokerError(code=ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark) if remark.startswith(_DRAINED):
            return Outcome.REFUSED_HERE
        case BrokerError(code=code) if code in _NOT_NOW:
            return Outcome.NOTHING
        case BrokerError(code=ResponseCode.SYSTEM_ERROR | ResponseCode.NO_PERMISSION, remark=remark) if any(
            text in remark.lower() for text in _NOT_SIGNED_RIGHT
        ):
            return Outcome.REFUSED
        case BrokerError(code=ResponseCode.SYSTEM_ERROR, remark=remark) if _TOO_FEW_IN_SYNC in remark:
            return Outcome.NOTHING
        case BrokerError(code=ResponseCode.SYSTEM_ERROR, remark=remark):
            # Permissions may differ between brokers, and may be changed while they run.
            return Outcome.REFUSED_HERE if _ACCESS_REFUSED in remark else Outcome.UNKNOWN
        case BrokerError(code=ResponseCode.INVALID_PARAMETER, remark=remark) if _NO_SUCH_QUEUE in remark:
            return Outcome.REFUSED_HERE
        case BrokerError(code=code) if code in _REFUSED_HERE:
            return Outcome.REFUSED_HERE
        case RouteNotFound(is_passing=True):
            return Outcome.NOTHING
        case _:
            return Outcome.REFUSED


# The same request gets the same answer until rights, options, or the requested object change.
_REFUSALS = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ResponseCode.INVALID_PARAMETER,
    }
)


def is_refusal(error: BaseException | None) -> bool:
    """Whether a server has understood a read, and will refuse it again: waiting for that server is useless.

    False for a topic or a queue that a broker lacks: a starting broker may get it, or learn of it later.
    """
    match error:
        case BrokerError(code=ResponseCode.INVALID_PARAMETER, remark=remark) if _NO_SUCH_QUEUE in remark:
            return False
        case BrokerError(code=ResponseCode.SYSTEM_ERROR):
            # With this code only texts about the caller's identity or rights are refusals, see `outcome_of`.
            return outcome_of(error) in (Outcome.REFUSED, Outcome.REFUSED_HERE)
        case BrokerError(code=code):
            return code in _REFUSALS
        case _:
            return False


def is_transient(error: SkylarkError) -> bool:
    """Whether a read that failed with ``error`` may succeed later."""
    return isinstance(error, RemotingError) or outcome_of(error) is Outcome.NOTHING


class FailedTries:
    """The failed tries of one send. ``avoid`` has the brokers at which it failed since all were last tried.

    ``error``: why the last try failed. ``answer``: what a broker last answered to a try. ``weak``: a try stored the
    message, with less safety than the broker requires.
    """

    __slots__ = ("answer", "avoid", "count", "error", "refused", "unknown", "weak")

    def __init__(self) -> None:
        self.count = 0
        self.unknown = 0
        self.refused = 0
        self.avoid: tuple[str, ...] = ()
        self.error: SkylarkError | None = None
        self.answer: BrokerError | None = None
        self.weak: WeakCopy | None = None

    def add(self, addr: str, error: SkylarkError, outcome: Outcome) -> None:
        """Count a try at ``addr`` that failed with ``error``."""
        self.count += 1
        self.unknown += outcome is Outcome.UNKNOWN
        self.refused += outcome is Outcome.REFUSED_HERE
        self.error = error
        if isinstance(error, BrokerError):
            self.answer = error
        if addr not in self.avoid:
            self.avoid = (*self.avoid, addr)

    def add_weak(self, copy: "WeakCopy") -> None:
        """Count a try that stored the message with less safety than the broker requires: another try makes a copy."""
        self.count += 1
        self.unknown += 1
        self.weak = copy
        if copy.addr not in self.avoid:
            self.avoid = (*self.avoid, copy.addr)

    def may_go_on(self, outcome: Outcome, retries: int, *, other_broker: bool) -> bool:
        """Whether to try again after a try with this ``outcome``, if there is time left.

        ``retries`` limits the tries that may have stored the message. When every broker has refused the message
        (``other_broker`` is false), it also limits the refused tries: routes and permissions may just be changing.
        """
        # Only tries of unknown outcome can store a message twice, so only they use up retries.
        if outcome is Outcome.REFUSED or self.unknown > retries:
            return False
        return other_broker or outcome is not Outcome.REFUSED_HERE or self.refused <= retries


T = TypeVar("T")


async def until_answered(call: Callable[[], Awaitable[T]], timeout_ms: float, backoff: Backoff) -> T:
    """The result of ``call``. It is called again after transient errors, until the timeout."""
    deadline = trio.current_time() + timeout_ms / 1000
    failures = 0
    while True:
        try:
            return await call()
        except SkylarkError as error:
            left_s = deadline - trio.current_time()
            if left_s <= 0 or not is_transient(error):
                raise
        failures += 1
        # The last try is at the deadline: a server that is back by then still answers it.
        await trio.sleep(min(backoff.pause_s(failures), left_s))
