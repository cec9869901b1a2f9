"""The description of a request, which writes and reads the request and its answer.

A header or body that does not exist is ``NOTHING``. A body of ``bytes`` has no structure: stored messages, or text.
The description is generic, so mypy knows the types of all headers and bodies.
Neighbours: remoting/net/call.py asks with descriptions; requests/ has the descriptions.
"""

from dataclasses import replace
from types import NoneType
from typing import Any, Final, Generic, TypeVar

from skylark.mqcommon.errors import ProtocolError, RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.bounded_body import SMALL, BodyLimits, decode_limited
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import FLAG_ONEWAY, Command
from skylark.remoting.protocol.dialect import MAX_RELAXED_BYTES, decode_body
from skylark.remoting.protocol.header import Header
from skylark.remoting.protocol.rights import UPDATE_CLUSTER, Need, Right

H = TypeVar("H", bound=Header | None)
B = TypeVar("B", bound=Body | bytes | None)
AH = TypeVar("AH", bound=Header | None)
AB = TypeVar("AB", bound=Body | bytes | None)

NOTHING: Final = NoneType


@lazy_dataclass(frozen=True, slots=True)
class SlaveAnswer:
    """A slave's answer to a request that only masters serve. With SUCCESS the slave does nothing all the same."""

    code: int
    remark: str = ""


@lazy_dataclass(frozen=True, slots=True)
class Request(Generic[H, B, AH, AB]):
    """One request code, and the headers and bodies of the request and its answer."""

    code: int
    header_type: type[H]
    body_type: type[B]
    answer_header_type: type[AH]
    answer_body_type: type[AB]
    #: Codes of answers that are not errors, besides SUCCESS.
    accepts: tuple[int, ...] = ()
    #: Whether some senders want no answer.
    may_be_oneway: bool = False
    #: Whether the header's fields have their short names.
    has_short_names: bool = False
    #: What a broker with access control asks of the sender; None for a request that is never sent to brokers.
    right: Right | None = None
    #: None: slaves serve the request, too.
    on_slave: SlaveAnswer | None = None

    # --- the sender's

    @property
    def bare(self) -> "Request[None, B, AH, AB]":
        """This request sent without a header; all fields of the header must be optional."""
        whole: Any = self
        return replace(whole, header_type=NOTHING)

    def command(self, header: H) -> Command:
        """The request, without its body."""
        fields: Any = header
        if fields is None:
            return Command(self.code)
        return Command(self.code, fields.to_short_ext() if self.has_short_names else fields.to_ext())

    def oneway(self, header: H) -> Command:
        """The request, without its body, for a sender that wants no answer."""
        if not self.may_be_oneway:
            raise ValueError(f"request {self.code} is never oneway")
        command = self.command(header)
        command.flag = FLAG_ONEWAY
        return command

    # --- the server's

    def header(self, request: Command) -> H:
        """The fields of ``request``. Raises RequestRefused when one is missing or cannot be read."""
        kind: Any = self.header_type
        header: H = kind.from_short_ext(request.ext) if self.has_short_names else kind.from_ext(request.ext)
        return header

    def body(self, request: Command, limits: BodyLimits = SMALL) -> B:
        """The body of ``request``. Raises RequestRefused when it cannot be read or is over its limits."""
        kind: Any = self.body_type
        raw: Any = request.body
        try:
            body: B = raw if kind is bytes else decode_limited(kind, raw, request.codec, limits)
        except ProtocolError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body cannot be read: {error}") from None
        return body

    def needs(self, request: Command) -> list[Need]:
        """The rights that the sender of ``request`` must have. Raises RequestRefused when the body cannot be read."""
        right = self.right or UPDATE_CLUSTER
        return right.of_ext(request.ext) if right.of_body is None else right.of_body(self.body(request, right.limits))

    def answer(
        self, request: Command, header: AH, *, code: int = 0, remark: str | None = None, body: bytes = b""
    ) -> Command:
        """The answer to ``request``, with an encoded body. remoting/net/answers.py makes those with other bodies."""
        fields: Any = header
        return request.respond(code, remark, None if fields is None else fields.to_ext(), body)


@lazy_dataclass(slots=True)
class Answer(Generic[AH, AB]):
    """An answer whose code its request accepts. It is decoded on demand, as many callers need only a part of it."""

    what: Request[Any, Any, AH, AB]
    command: Command

    @property
    def code(self) -> int:
        """SUCCESS, or another that the request accepts."""
        return self.command.code

    def header(self) -> AH:
        """The fields of the answer. Raises ProtocolError when one is missing or cannot be read."""
        kind: Any = self.what.answer_header_type
        header: AH = kind.from_answer(self.command.ext)
        return header

    def body(self, relaxed_bytes: int = MAX_RELAXED_BYTES) -> AB:
        """The body of the answer. Raises ProtocolError when it cannot be read. ``relaxed_bytes``: see `decode_body`."""
        kind: Any = self.what.answer_body_type
        raw: Any = self.command.body
        if not raw and kind is not bytes:
            raise ProtocolError(f"the answer has no body; it should be a {kind.__name__}")
        body: AB = raw if kind is bytes else decode_body(kind, raw, self.command.codec, relaxed_bytes)
        return body
