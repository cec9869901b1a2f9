"""One request or answer, whatever its header type.

A broker makes two commands for each message, so they use slots and positional arguments to be cheap.
``ext`` None means that the frame had no extFields member; the header codecs turn its values into text
when the header type knows text only. ``codec`` is the header type that it arrived in or is sent in.
"""

from collections.abc import Mapping
from typing import Any, Final

JSON: Final = 0
ROCKETMQ: Final = 1
CBOR: Final = 0x43

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

#: V5_3_3, which Java's tools show as Skylark's version.
VERSION: Final = 479

#: A client that speaks CBOR puts this field into its first request, which is JSON. A server that speaks CBOR, too,
#: puts it into the answer. From then on the client sends CBOR.
OFFER_FIELD: Final = "skylark"
OFFER_CBOR: Final = "cbor"
#: A broker adds its name to the answer that accepts CBOR, so that clients notice when another broker has its address.
BROKER_NAME_FIELD: Final = "brokerName"
#: The broker that a request is meant for, in requests for a queue.
BNAME_FIELD: Final = "bname"

#: By ordinal, as ROCKETMQ and CBOR headers carry them.
LANGUAGES: Final = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY",
    "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
)  # fmt: skip
LANGUAGE_ORDINALS: Final[Mapping[str, int]] = {name: ordinal for ordinal, name in enumerate(LANGUAGES)}
OTHER_LANGUAGE: Final = "OTHER"
OTHER_ORDINAL: Final = LANGUAGE_ORDINALS[OTHER_LANGUAGE]


class Command:
    """A request, or the answer to one (bit 0 of ``flag``)."""

    __slots__ = ("body", "code", "codec", "ext", "flag", "language", "opaque", "remark", "version")

    def __init__(
        self,
        code: int,
        ext: dict[str, Any] | None = None,
        body: bytes = b"",
        flag: int = 0,
        opaque: int = 0,
        remark: str | None = None,
        codec: int = JSON,
        language: str = "PYTHON",
        version: int = VERSION,
    ) -> None:
        self.code = code
        self.ext = ext
        self.body = body
        self.flag = flag
        self.opaque = opaque
        self.remark = remark
        self.codec = codec
        self.language = language
        self.version = version

    @property
    def is_response(self) -> bool:
        """Whether this is an answer."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return self.flag & FLAG_ONEWAY != 0

    def respond(
        self,
        code: int = 0,
        remark: str | None = None,
        ext: dict[str, Any] | None = None,
        body: bytes = b"",
    ) -> "Command":
        """The answer to this request: same opaque, same header type."""
        return Command(code, ext, body, FLAG_RESPONSE, self.opaque, remark, self.codec)

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Command):
            return NotImplemented
        return self._fields() == other._fields()

    __hash__ = None  # type: ignore[assignment]  # the language's way to say unhashable

    def __repr__(self) -> str:
        kind = "answer" if self.is_response else "oneway" if self.is_oneway else "request"
        remark = "" if self.remark is None else f" remark={self.remark!r}"
        return (
            f"<{kind} code={self.code} opaque={self.opaque} ext={self.ext!r}"
            f"{remark} body={len(self.body)}B {self.language}/{self.version}>"
        )


def ext_text(value: Any) -> str:
    """A value of ``ext`` as JSON and ROCKETMQ headers carry it: Java's text."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


def text_ext(ext: dict[str, Any]) -> dict[str, str]:
    """All of ``ext`` as text; values that are None are left out, as Java leaves out null fields."""
    texts = ext.copy()
    for name, value in ext.items():
        if value.__class__ is not str:
            if value.__class__ is int:
                # Most values that are not text are ints; a call of ext_text would double the time for them.
                texts[name] = str(value)
            elif value is None:
                del texts[name]
            else:
                texts[name] = ext_text(value)
    return texts


def language_name(ordinal: int) -> str:
    """The language with this ordinal; OTHER for an ordinal that is not in the table."""
    return LANGUAGES[ordinal] if 0 <= ordinal < len(LANGUAGES) else OTHER_LANGUAGE
