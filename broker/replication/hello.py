"""The handshake of two Skylark brokers, before the first report. Pure.

 magic 8 | length 4 | CBOR

 slave   Hello      who it is, a nonce
 master  Challenge  a nonce, and proof that it knows the secret
 slave   Claim      proof that it knows the secret, and what its log holds: ends, CRCs of some pieces of it
 master  Welcome    the offset where it goes on, or why it refuses

Read as an offset, the magic is negative, which no RocketMQ peer sends. The proof is HMAC-SHA256 over both nonces and
the slave's hello; it is empty without a secret. The frames after that are neither signed nor encrypted.
Neighbours: frames.py (the frames after that), link.py (the order).
"""

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar

from mqcommon.errors import ProtocolError
from remoting.protocol import strict_cbor

MAGIC = b"\xffSKYLARK"
VERSION = 1
NONCE_BYTES = 16
MAX_HELLO_BYTES = 16 * 1024
_LENGTH = struct.Struct(">I")
_HEAD_BYTES = len(MAGIC) + _LENGTH.size
# A claim has CRCs of this many bytes each, at these distances before its end: a difference is found whether it began
# near the end or far back.
TAIL_BYTES = 4096
_TAILS_AT = (0, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30, 4 << 30)
_MAX_TAILS = 16

T = TypeVar("T")


class Tail(NamedTuple):
    """The CRC32 of ``size`` bytes at ``offset``."""

    offset: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Hello:
    """Who the slave is; ``addr`` is where clients reach it."""

    version: int
    cluster: str
    broker: str
    broker_id: int
    addr: str
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Challenge:
    """``proof`` is empty when the master has no secret."""

    version: int
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """The slave's log: bytes ``start`` to ``end``. If empty, ``last_file`` says whether it wants only the last file."""

    proof: bytes
    start: int
    end: int
    file_bytes: int
    last_file: bool
    tails: tuple[Tail, ...]


@dataclass(frozen=True, slots=True)
class Welcome:
    """Frames begin at ``offset``, or ``refusal`` says why there are none."""

    offset: int
    refusal: str


def encode(message: Hello | Challenge | Claim | Welcome) -> bytes:
    body = strict_cbor.dumps(asdict(message))
    return b"".join((MAGIC, _LENGTH.pack(len(body)), body))


def decode(cls: type[T], body: Any) -> T:
    """The message that is due now; ProtocolError when ``body`` is not one."""
    expected: dict[str, type] = {
        "version": int, "cluster": str, "broker": str, "broker_id": int, "addr": str, "nonce": bytes, "proof": bytes,
        "start": int, "end": int, "file_bytes": int, "last_file": bool, "tails": tuple, "offset": int, "refusal": str,
    }  # fmt: skip
    names = cls.__dataclass_fields__  # type: ignore[attr-defined]  # each turn of the hello is a dataclass
    if not isinstance(body, dict) or any(name not in body for name in names):
        raise ProtocolError(f"not a {cls.__name__} of a Skylark broker")
    # Fields that a later version added are ignored.
    values = {name: body[name] for name in names}
    if "tails" in values:
        values["tails"] = _tails(values["tails"])
    for name, value in values.items():
        if type(value) is not expected[name] or (isinstance(value, int) and not 0 <= value < 1 << 63):
            raise ProtocolError(f"{cls.__name__}: {name} is {value!r}")
    return cls(**values)


def _tails(raw: Any) -> tuple[Tail, ...]:
    if not isinstance(raw, list) or len(raw) > _MAX_TAILS:
        raise ProtocolError("Claim: tails is not a list of a few CRCs")
    for row in raw:
        if not isinstance(row, list) or len(row) != 3 or any(type(n) is not int or n < 0 for n in row):
            raise ProtocolError(f"Claim: {row!r} is not a CRC of a piece")
        if row[1] > TAIL_BYTES:
            raise ProtocolError(f"Claim: a CRC of {row[1]} bytes")
    return tuple(Tail(*row) for row in raw)


class HelloReader:
    """Reads one message at a time; ``rest`` is what came after it."""

    def __init__(self) -> None:
        self.rest = b""

    def receive(self, data: bytes) -> Any:
        """The CBOR value when it is complete, None before. ProtocolError as soon as the bytes cannot be a message."""
        self.rest += data
        if not MAGIC.startswith(self.rest[: len(MAGIC)]):
            raise ProtocolError("not a Skylark broker: the magic is missing")
        if len(self.rest) < _HEAD_BYTES:
            return None
        (length,) = _LENGTH.unpack_from(self.rest, len(MAGIC))
        if length > MAX_HELLO_BYTES:
            raise ProtocolError(f"a hello of {length} bytes")
        end = _HEAD_BYTES + length
        if len(self.rest) < end:
            return None
        body, self.rest = self.rest[_HEAD_BYTES:end], self.rest[end:]
        return strict_cbor.loads(body, text_keys=True)


def proof(secret: bytes, role: bytes, hello: Hello, master_nonce: bytes) -> bytes:
    """Proof that ``role`` knows the secret, for this connection only; empty without a secret."""
    if not secret:
        return b""
    said = strict_cbor.dumps([role, asdict(hello), master_nonce])
    return hmac.new(secret, said, hashlib.sha256).digest()


def is_proof(given: bytes, secret: bytes, role: bytes, hello: Hello, master_nonce: bytes) -> bool:
    return hmac.compare_digest(given, proof(secret, role, hello, master_nonce))


def tail_places(start: int, end: int, file_bytes: int) -> list[tuple[int, int]]:
    """(offset, size) of the pieces whose CRCs a slave with bytes ``start`` to ``end`` sends.

    Each piece lies within one file: a master that has deleted old files has all of a piece or nothing of it.
    """
    places: list[tuple[int, int]] = []
    for back in _TAILS_AT:
        last = end - back
        if last <= start:
            break
        first = max(last - TAIL_BYTES, start)
        file_start = max((last - 1) // file_bytes * file_bytes, first)
        places.append((file_start, last - file_start))
        if first < file_start:
            places.append((first, file_start - first))
    return places


def first_difference(tails: tuple[Tail, ...], start: int, end: int, crc_of: Callable[[int, int], int]) -> Tail | None:
    """A piece that differs in the log from ``start`` to ``end``; None when all are the same."""
    for tail in tails:
        if start <= tail.offset and tail.offset + tail.size <= end and crc_of(tail.offset, tail.size) != tail.crc:
            return tail
    return None
