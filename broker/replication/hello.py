"""The handshake of two Skylark brokers, before the first report. Pure.

 magic 8 | length 4 | CBOR

 slave   Hello      who it is, a nonce
 master  Challenge  a nonce, and proof that it knows the secret
 slave   Claim      proof that it knows the secret, and what its log holds: ends, CRCs of some pieces of it
 master  Welcome    the offset where it goes on, or why it refuses

Read as an offset or as a state, the magic is negative, which no RocketMQ peer sends. The proof is HMAC-SHA256 over both
nonces and the slave's hello; it is empty without a secret. The frames after that are neither signed nor encrypted.
Since version 2 the slave's proof covers the master's address, too (`LogClaim`).
Sets with and without a Controller begin with the same handshake. They differ in who judges the claim, and in the frames
after the Welcome. With a Controller a claim has no CRCs, since epochs show where two logs differ.
Neighbours: link.py and autoswitch/link.py (what follows the handshake).
"""

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NamedTuple, TypeVar

from skylark.broker.replication.frames import PLAIN_CHUNK_BYTES
from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.errors import ProtocolError, ReplicationRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol import strict_cbor

MAGIC = b"\xffSKYLARK"
VERSION = 2
NONCE_BYTES = 16
MAX_HELLO_BYTES = 16 * 1024
_LENGTH = struct.Struct(">I")
_HEAD_BYTES = len(MAGIC) + _LENGTH.size
# A claim has CRCs of this many bytes each, at these distances before its end: a difference is found whether it began
# near the end or far back.
TAIL_BYTES = 4096
_TAILS_AT = (0, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30, 4 << 30)
_MAX_TAILS = 16
_MAX_ADDRESS = 64

_REMEDY = (
    "set the same haSharedSecret or innerClientAuthenticationCredentials on both, or list the address in"
    " haPlainPeerAddresses"
)

# Fields that version 1 does not have.
_OPTIONAL = ("met_at", "client_addr")

T = TypeVar("T")


def nowhere(addr: str) -> bool:
    return False


@lazy_dataclass(frozen=True)
class LinkTerms:
    """The settings of both ends of an HA connection: whom they trust, and how long they wait."""

    cluster: str = ""
    broker: str = ""
    secret: bytes = b""
    # Whether peers that send no hello are served, wherever they are.
    allow_plain: bool = True
    # Hosts of peers that are served without a hello.
    plain_hosts: frozenset[str] = frozenset()
    # Access control is on, and TLS does not ask for certificates: a hello without a secret proves nothing.
    must_prove: bool = False
    heartbeat_s: float = 5.0
    timeout_s: float = 20.0
    # How long a peer may take to identify itself.
    hello_s: float = 20.0
    # The most bytes of a frame to a peer that sent no hello.
    plain_chunk_bytes: int = PLAIN_CHUNK_BYTES
    # Whether slaves may reach this master at ``ip:port``, which is none of its machine's addresses.
    reached_at: Callable[[str], bool] = nowhere
    # Where clients reach this broker; "": its slaves are not told.
    client_addr: str = ""

    def trusts_plain(self, addr: str) -> bool:
        """Whether a peer at ``addr`` (host:port) needs no hello."""
        return self.allow_plain or split_address(addr)[0] in self.plain_hosts

    def check_plain_master(self, addr: str) -> None:
        """ReplicationRefused when a slave must not follow a master at ``addr`` that takes no hello."""
        if (self.must_prove or self.secret) and not self.trusts_plain(addr):
            raise ReplicationRefused(
                f"the master at {addr} is no Skylark broker, and cannot prove that it belongs to this set: list its"
                " host in haPlainPeerAddresses if it does"
            )


class PieceCrc(NamedTuple):
    """The CRC32 of ``size`` bytes at ``offset``."""

    offset: int
    size: int
    crc: int


@lazy_dataclass(frozen=True, slots=True)
class Hello:
    """Who the slave is; ``addr`` is where clients reach it."""

    version: int
    cluster: str
    broker: str
    broker_id: int
    addr: str
    nonce: bytes


@lazy_dataclass(frozen=True, slots=True)
class Challenge:
    """``proof`` is empty when the master has no secret."""

    version: int
    nonce: bytes
    proof: bytes


@lazy_dataclass(frozen=True, slots=True)
class LogClaim:
    """The slave's log: bytes ``start`` to ``end``. If empty, ``last_file`` says whether it wants only the last file.

    ``met_at``: the ``ip:port`` to which the slave has connected, which must be one of the master's: else a stranger
    could forward the handshake, and read the log. Version 1, which lacks it, is spoken with peers that know no other;
    the master's proof covers the version, so nobody can make two newer peers speak it.
    """

    proof: bytes
    start: int
    end: int
    file_bytes: int
    last_file: bool
    tails: tuple[PieceCrc, ...]
    met_at: str = ""


@lazy_dataclass(frozen=True, slots=True)
class Welcome:
    """Frames begin at ``offset``, or ``refusal`` says why there are none.

    ``client_addr``: where the master takes requests; "" from an older version.
    """

    offset: int
    refusal: str
    client_addr: str = ""


def encode(message: Hello | Challenge | LogClaim | Welcome) -> bytes:
    body = strict_cbor.dumps(asdict(message))
    return b"".join((MAGIC, _LENGTH.pack(len(body)), body))


def decode(cls: type[T], body: Any) -> T:
    """The message that is due now; ProtocolError when ``body`` is not one."""
    expected: dict[str, type] = {
        "version": int,
        "cluster": str,
        "broker": str,
        "broker_id": int,
        "addr": str,
        "nonce": bytes,
        "proof": bytes,
        "start": int,
        "end": int,
        "file_bytes": int,
        "last_file": bool,
        "tails": tuple,
        "offset": int,
        "refusal": str,
        "met_at": str,
        "client_addr": str,
    }
    names = cls.__dataclass_fields__  # type: ignore[attr-defined]  # each turn of the hello is a dataclass
    if not isinstance(body, dict) or any(name not in body for name in names if name not in _OPTIONAL):
        raise ProtocolError(f"not a {cls.__name__} of a Skylark broker")
    # Fields that a later version added are ignored.
    values = {name: body[name] for name in names if name in body}
    if "tails" in values:
        values["tails"] = _tails(values["tails"])
    for name, value in values.items():
        if type(value) is not expected[name] or (isinstance(value, int) and not 0 <= value < 1 << 63):
            raise ProtocolError(f"{cls.__name__}: {name} is {value!r}")
    return cls(**values)


def _tails(raw: Any) -> tuple[PieceCrc, ...]:
    if not isinstance(raw, list) or len(raw) > _MAX_TAILS:
        raise ProtocolError("LogClaim: tails is not a list of a few CRCs")
    for row in raw:
        if not isinstance(row, list) or len(row) != 3 or any(type(n) is not int or n < 0 for n in row):
            raise ProtocolError(f"LogClaim: {row!r} is not a CRC of a piece")
        if row[1] > TAIL_BYTES:
            raise ProtocolError(f"LogClaim: a CRC of {row[1]} bytes")
    return tuple(PieceCrc(*row) for row in raw)


class HelloReader:
    """Reads one message at a time; ``rest`` has the bytes after the message."""

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


class MasterHandshake:
    """The master's side. `receive` until ``claim`` is set, then call `welcome`; or `refuse` at any time.

    Whenever the peer is not a slave of this set, ProtocolError is raised or ``refusal`` is set.
    """

    def __init__(self, terms: LinkTerms, nonce: bytes) -> None:
        self._terms = terms
        self._nonce = nonce
        # The protocol version of both ends, once the slave has said hello.
        self._version = 1
        #: This end of the connection, ``ip:port``.
        self.local = ""
        self._reader = HelloReader()
        self._output = b""
        self.hello: Hello | None = None
        # Set when the slave has proved that it knows the secret, until the claim is answered.
        self.claim: LogClaim | None = None
        # Why the slave is refused, "" if it is not. It is in the output: close the connection when that is sent.
        self.refusal = ""

    def receive(self, data: bytes) -> None:
        """Take bytes from the slave."""
        if self.claim is not None or self.refusal:
            raise ProtocolError("it sent more before its claim was answered")
        body = self._reader.receive(data)
        if body is None:
            return
        # In lockstep: bytes sent before the answer cannot prove anything about the nonces of this connection.
        if self._reader.rest:
            raise ProtocolError("it did not wait for an answer")
        terms = self._terms
        if self.hello is None:
            self.hello = hello = decode(Hello, body)
            if (hello.cluster, hello.broker) != (terms.cluster, terms.broker):
                self.refuse(f"this is broker {terms.broker} of cluster {terms.cluster}")
            elif terms.must_prove and not terms.secret:
                self.refuse(f"the master has access control and no secret to know its slaves by: {_REMEDY}")
            else:
                self._version = min(VERSION, hello.version)
                proof = _proof(terms, b"master", hello, self._nonce, *_of_master(self._version))
                self._output += encode(Challenge(self._version, self._nonce, proof))
            return
        # The proof covers both nonces, so a recorded claim proves nothing on another connection. Until the proof is
        # checked, nothing about the log is revealed to the slave.
        claim = decode(LogClaim, body)
        is_bound = self._version > 1
        said = [claim.met_at] if is_bound else []
        if not hmac.compare_digest(claim.proof, _proof(terms, b"slave", self.hello, self._nonce, *said)):
            raise ProtocolError(
                "it does not have the haSharedSecret or innerClientAuthenticationCredentials of this master"
            )
        if is_bound and terms.secret and not (claim.met_at == self.local or terms.reached_at(claim.met_at)):
            raise ProtocolError(
                f"it has connected to {claim.met_at[:_MAX_ADDRESS]}, which is no address of this master: if it is one,"
                " by way of another address of its network, add that to reachedAtAddresses in its conf file"
            )
        self.claim = claim

    def welcome(self, offset: int) -> None:
        """Answer the claim: frames begin at ``offset``."""
        self.claim = None
        self._output += encode(Welcome(offset, "", self._terms.client_addr))

    def refuse(self, reason: str) -> None:
        """Answer that there will be no frames."""
        self.claim, self.refusal = None, reason
        self._output += encode(Welcome(0, reason))

    def take_output(self) -> bytes:
        """The bytes to send."""
        output, self._output = self._output, b""
        return output


class SlaveHandshake:
    """The slave's side: send `take_output`, and `receive` until ``welcome`` is set.

    ReplicationRefused when the master is not to be followed, or refuses this slave.
    """

    def __init__(self, terms: LinkTerms, hello: Hello, claim: LogClaim) -> None:
        """``claim``: its proof is made here."""
        if terms.must_prove and not terms.secret:
            raise ReplicationRefused(f"this slave has access control and no secret to know its master by: {_REMEDY}")
        self._terms = terms
        self._hello = hello
        self._claim = claim
        #: The other end of the connection, ``ip:port``.
        self.remote = ""
        self._reader = HelloReader()
        self._is_challenged = False
        self._output = encode(hello)
        self.welcome: Welcome | None = None

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the master; returns the bytes that came after its Welcome."""
        body = self._reader.receive(data)
        if body is None:
            return b""
        # The master proves itself first: a stranger in its place learns nothing about this log. It may refuse instead.
        if not self._is_challenged and not (isinstance(body, dict) and body.get("refusal")):
            challenge = decode(Challenge, body)
            made = _proof(self._terms, b"master", self._hello, challenge.nonce, *_of_master(challenge.version))
            if not hmac.compare_digest(challenge.proof, made):
                raise ReplicationRefused(
                    "the master has another haSharedSecret, or without one other innerClientAuthenticationCredentials:"
                    " set the same on both"
                )
            self._is_challenged = True
            said = [self.remote] if challenge.version > 1 else []
            proof = _proof(self._terms, b"slave", self._hello, challenge.nonce, *said)
            self._claim = replace(self._claim, proof=proof, met_at=self.remote)
            self._output += encode(self._claim)
            return b""
        welcome = decode(Welcome, body)
        if welcome.refusal:
            raise ReplicationRefused(welcome.refusal)
        self.welcome = welcome
        return self._reader.rest

    def take_output(self) -> bytes:
        """The bytes to send."""
        output, self._output = self._output, b""
        return output


def _of_master(version: int) -> list[int]:
    """What a master's proof covers in addition, so that nobody can change the version on its way."""
    return [version] if version > 1 else []


def _proof(terms: LinkTerms, role: bytes, hello: Hello, master_nonce: bytes, *said: int | str) -> bytes:
    """Proof that ``role`` knows the secret and has sent ``said``, for this connection only; empty without a secret."""
    if not terms.secret:
        return b""
    # The role is covered, too: otherwise a stranger could send a peer's own proof back to it.
    covered = strict_cbor.dumps([role, asdict(hello), master_nonce, *said])
    return hmac.new(terms.secret, covered, hashlib.sha256).digest()


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


def first_difference(
    tails: tuple[PieceCrc, ...], start: int, end: int, crc_of: Callable[[int, int], int]
) -> PieceCrc | None:
    """A piece that differs in the log from ``start`` to ``end``; None when all are the same."""
    # A piece that is not wholly in this log cannot be compared: its file was deleted, or the slave's log is longer,
    # which the comparison of the two ends finds.
    for tail in tails:
        if start <= tail.offset and tail.offset + tail.size <= end and crc_of(tail.offset, tail.size) != tail.crc:
            return tail
    return None
