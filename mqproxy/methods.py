"""The steps around the content of a call: who calls, the request in time, the answer, the status for an error.

A call with one answer needs no task of its own, as long as its caller is known and nothing has to be awaited.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import trio
from google.protobuf.message import Message as ProtoMessage

from skylark.mqcommon.addresses import limited_network
from skylark.mqcommon.errors import SkylarkError
from skylark.mqproxy.metrics import Meters
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.sessions import Session, Sessions
from skylark.mqproxy.statuses import Refused, parsed, status_of
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.grpc.call import Call, Result, Unary
from skylark.remoting.grpc.statuses import GrpcError, StatusCode
from skylark.remoting.net.limits import RateLimit

logger = logging.getLogger(__name__)

A = TypeVar("A", bound=ProtoMessage)


class Caller(NamedTuple):
    """The caller: the id that a client gave itself, its address, and the session of its user.

    Only a session has clients of the SDK, so a call that does not determine its caller cannot reach a broker.
    ``began_s``: when the call began, by the clock of the meters; 0 without meters.
    """

    client_id: str
    host: str
    address: str
    session: Session
    began_s: float


class Callers:
    """Finds the caller of each call, and limits the calls of one address. With ``meters`` calls are measured."""

    def __init__(self, options: ProxyOptions, sessions: Sessions, meters: Meters | None) -> None:
        self._sessions = sessions
        self.meters = meters
        most = options.max_requests_per_second
        self._rate = RateLimit(most) if most else None

    def known(self, call: Call) -> Caller | None:
        """The caller of a call; None when that takes time, for `asked`. Refused as `of`."""
        if self._rate is not None and not self._rate.take(limited_network(_host(call.peer)), trio.current_time()):
            raise Refused(wire.TOO_MANY_REQUESTS, "flow limit")
        session = self._sessions.known(call.headers)
        return None if session is None else self._caller(call, session)

    async def asked(self, call: Call) -> Caller:
        """The caller of a call for which `known` had no answer. Refused as `of`."""
        return self._caller(call, await self._sessions.of_call(call.headers))

    async def of(self, call: Call) -> Caller:
        """The caller of a call. Refused when the call is not signed as it must be, or has no client id.

        The session must be entered at once: without a call in progress it may be closed.
        """
        # The signature is checked before the request is read: a stranger's request takes no memory.
        return self.known(call) or await self.asked(call)

    def _caller(self, call: Call, session: Session) -> Caller:
        client_id = call.headers.get("x-mq-client-id", "")
        if not client_id or client_id.isspace():
            raise Refused(wire.CLIENT_ID_REQUIRED, "client id cannot be empty")
        peer = call.peer
        return Caller(client_id, _host(peer), peer, session, self.now_s())

    def now_s(self) -> float:
        """The time by the clock of the meters; 0 without meters."""
        return 0.0 if self.meters is None else self.meters.now_s()


class CallerStep(NamedTuple):
    """The first step of calls with one request: it finds the caller, before the request is read.

    ``refusal`` encodes the answer for an error. Calls have their `Caller` as their state from then on, whose session is
    in use until they end.
    """

    callers: Callers
    refusal: Callable[[Exception, float], bytes | tuple[bytes, ...]]

    def begin(self, call: Call) -> Result:
        """Find the caller; an answer is a refusal."""
        try:
            caller = self.callers.known(call)
        except Exception as error:
            return self.refusal(error, self.callers.now_s())
        if caller is None:
            return self._begin_later(call)
        self._use(call, caller)
        return None

    async def _begin_later(self, call: Call) -> bytes | tuple[bytes, ...] | None:
        try:
            self._use(call, await self.callers.asked(call))
        except Exception as error:
            return self.refusal(error, self.callers.now_s())
        return None

    def _use(self, call: Call, caller: Caller) -> None:
        call.state = caller
        caller.session.begin_call()
        call.when_ended(caller.session.end_call)

    def unread(self, call: Call, error: GrpcError) -> bytes | tuple[bytes, ...]:
        """Answer a call without a request, or whose request did not become whole in time."""
        is_late = error.status == StatusCode.DEADLINE_EXCEEDED
        return self.refusal(late_request() if is_late else no_request(), call.state.began_s)


class Reply:
    """How a call that was begun without a task is answered, once."""

    __slots__ = ("_call", "_method", "_request")

    def __init__(self, method: "UnaryMethod", call: Call, request: Any) -> None:
        self._method = method
        self._call = call
        self._request = request

    def send(self, answer: ProtoMessage) -> None:
        """Answer the call."""
        self._method.finish(self._call, answer)

    def send_encoded(self, code: wire.Code, answer: bytes) -> None:
        """Answer the call; ``code`` is the code of the answer's status."""
        self._method.finish_encoded(self._call, code, answer)

    def carry_out(self, work: Callable[[Caller, Any], Awaitable[Any]]) -> None:
        """Carry the call out from the beginning, as a task: ``work`` returns its answer."""
        self._method.carry_out(self._call, self._request, work)


class UnaryMethod:
    """A method with one request and one answer. ``call`` carries a call out.

    ``at_once``, if given, is tried first: it begins to carry the call out without waiting, and uses the `Reply` now or
    later. It returns False, and does not use the reply, when it could not begin.
    """

    def __init__(
        self,
        callers: Callers,
        name: str,
        call: Callable[[Caller, Any], Awaitable[Any]],
        at_once: Callable[[Caller, Any, Reply], bool] | None = None,
        read: Callable[[bytes], Any] | None = None,
    ) -> None:
        """``read``: makes the request that ``call`` and ``at_once`` take, by default an object of protobuf."""
        self._callers = callers
        self._name = name
        kind = getattr(wire, f"{name}Request")
        self._read: Callable[[bytes], Any] = partial(parsed, kind) if read is None else read
        self._answer_type = getattr(wire, f"{name}Response")
        self._call = call
        self._at_once = at_once

    def as_grpc(self) -> Unary:
        """The method for gRPC's server."""
        begun = CallerStep(self._callers, self._refusal)
        return Unary(begun.begin, self.run, begun.unread)

    def run(self, call: Call, data: bytes) -> Result:
        """Carry the call out."""
        try:
            request = self._read(data)
            if self._at_once is not None and self._at_once(call.state, request, Reply(self, call, request)):
                return None
        except Exception as error:
            return self._refusal(error, call.state.began_s)
        return self._run_later(call, request, self._call)

    async def _run_later(self, call: Call, request: Any, work: Callable[[Caller, Any], Awaitable[Any]]) -> bytes:
        try:
            answer = await work(call.state, request)
        except Exception as error:
            return self._refusal(error, call.state.began_s)
        return self._encoded(answer, call.state.began_s)

    def finish(self, call: Call, answer: Any) -> None:
        """Answer a call."""
        call.answer(self._encoded(answer, call.state.began_s))

    def finish_encoded(self, call: Call, code: wire.Code, answer: bytes) -> None:
        """Answer a call with the bytes of an answer whose status has ``code``."""
        self._count(code, call.state.began_s)
        call.answer(answer)

    def carry_out(self, call: Call, request: Any, work: Callable[[Caller, Any], Awaitable[Any]]) -> None:
        """Carry a call out by ``work`` as a task, after `run` has returned None for it."""
        call.start(self._run_later(call, request, work))

    def _refusal(self, error: Exception, began_s: float) -> bytes:
        return self._encoded(self._answer_type(status=status_of_any(error)), began_s)

    def _encoded(self, answer: Any, began_s: float) -> bytes:
        self._count(answer.status.code, began_s)
        encoded: bytes = answer.SerializeToString()
        return encoded

    def _count(self, code: wire.Code, began_s: float) -> None:
        if (meters := self._callers.meters) is not None:
            meters.count(self._name, code, began_s)


@lru_cache(maxsize=1_024)
def _host(peer: str) -> str:
    return peer.rpartition(":")[0].strip("[]")


async def request_of(call: Call, kind: type[A], timeout_s: float) -> A:
    """The one request of a stream of answers. Refused when it cannot be read, or is not whole in time."""
    with trio.move_on_after(timeout_s):
        data = await call.read()
        if data is None:
            raise no_request()
        return parsed(kind, data)
    raise late_request()


def no_request() -> Refused:
    """The refusal of a call without a request."""
    return Refused(wire.BAD_REQUEST, "there is no request")


def late_request() -> Refused:
    """The refusal of a call whose request is not whole after ``slowFrameTimeout``."""
    return Refused(wire.REQUEST_TIMEOUT, "the request did not become whole in time")


def status_of_any(error: Exception) -> wire.Status:
    """The status for an error, which is logged if it was not expected."""
    return status_of(error) if isinstance(error, (Refused, SkylarkError)) else unexpected(error)


def unexpected(error: Exception) -> wire.Status:
    """The status for an error that was not expected; logs the error."""
    logger.error("a call failed by an error that was not expected", exc_info=error)
    return wire.Status(code=wire.INTERNAL_SERVER_ERROR, message=f"internal error: {type(error).__name__}")
