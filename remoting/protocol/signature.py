"""The two signatures by which clients prove who they are.

RocketMQ's (`sign`) is HMAC-SHA1 over the values of all ext fields but the signature, in the order of their names, and
then the body. A server takes the values as they arrived, numbers and booleans as their text, so that any client's
header can be checked. It covers neither the code, nor names and borders of fields, nor the time.
Source: AclUtils and AclClientRPCHook of RocketMQ; the tests have signatures of official clients.

Skylark's (`WholeSignatures`) is between a client and a server of Skylark. It covers the whole request, a challenge of
the server that no other connection has, the server's address as the client has connected to it, and a number that rises
with each request of the connection. Its hash and its key differ from RocketMQ's, so that neither signature is ever
valid as the other. The address is in the key, so it costs nothing for a request.
"""

import hmac
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from hashlib import sha1, sha256
from typing import Any, Final

from skylark.mqcommon.bounded_cache import BoundedCache
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol import strict_cbor
from skylark.remoting.protocol.command import CBOR, Command, ext_text, text_ext
from skylark.remoting.protocol.plain_peers import EVERYWHERE, plain_peers

ACCESS_KEY_FIELD: Final = "AccessKey"
SIGNATURE_FIELD: Final = "Signature"
SECURITY_TOKEN_FIELD: Final = "SecurityToken"
#: In a server's answer to a request for a challenge.
CHALLENGE_FIELD: Final = "challenge"
#: In a request for a challenge, and in its answer: the address to which the client has connected.
SERVER_FIELD: Final = "server"
# RocketMQ 4 does not sign this field; clients up to this version are taken to be of that kind.
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_LAST_WITHOUT_UNIQUE_KEY_QUERY: Final = 399
_BLOCK: Final = 64  # of SHA-1 and SHA-256, in bytes
# A whole signature is "number:hash". RocketMQ's is base64, which has no colon.
_COLON: Final = ":"
_MAX_DIGITS: Final = 18
# A peer can send any text; longer ones are not remembered.
_MAX_LANGUAGE: Final = 32
_PURPOSE: Final = b"skylark: requests of one connection, with the challenge "
_PURPOSE_AT: Final = b"skylark: requests of one connection to the server %s, with the challenge "
_PURPOSE_SEAL: Final = b"skylark: answers of the server %s on the connection with the challenge %s"
# Clients send the same fields in the same order again and again, and sorting them would take a third of the time. By
# whether the field above is left out.
_ORDERS: Final = (
    BoundedCache[tuple[str, ...], list[str]](1 << 20),
    BoundedCache[tuple[str, ...], list[str]](1 << 20),
)


@lazy_dataclass(frozen=True, slots=True)
class Credentials:
    """The access key and secrets of a client. The secrets are in no repr, so that they get into no log.

    ``plain_signature_addresses`` names the servers that may get RocketMQ's signature, which does not cover the request
    code, when they know no other: ``host:port`` and networks, separated by commas. ``*`` is all servers, "" is none.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)
    plain_signature_addresses: str = field(default=EVERYWHERE, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key", "security_token", "plain_signature_addresses"):
            # A secret that was passed as another argument by mistake must not be shown, so only its type is.
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a str, not {type(getattr(self, name)).__name__}")
        plain_peers(self.plain_signature_addresses)

    def may_sign_plainly_at(self, addr: str) -> bool:
        """Whether the server at ``addr`` may get RocketMQ's signature."""
        return addr in plain_peers(self.plain_signature_addresses)


def sign(request: Command, credentials: Credentials) -> None:
    """Add the fields of ``credentials`` and the signature. Ext fields and body must not change afterwards."""
    ext = {**(request.ext or {}), ACCESS_KEY_FIELD: credentials.access_key}
    if credentials.security_token:
        ext[SECURITY_TOKEN_FIELD] = credentials.security_token
    ext[SIGNATURE_FIELD] = signature(credentials.secret_key, content(ext, request.body, request.version))
    request.ext = ext


def is_signed_with(request: Command, secret_key: str, whole: "WholeSignatures | None" = None) -> bool:
    """Whether the signature of ``request`` was made with this key. Takes the same time however much of it fits.

    ``whole`` belongs to the connection of the request, if its client has asked for a challenge there.
    """
    ext = request.ext or {}
    given = ext.get(SIGNATURE_FIELD, "")
    if given.__class__ is not str:
        given = ext_text(given)
    if _COLON in given:
        return whole is not None and whole.is_signed_with(request, secret_key)
    expected = _signature(secret_key, content(ext, request.body, request.version))
    return hmac.compare_digest(expected, given.encode(errors="replace"))


def is_plain(request: Command) -> bool:
    """Whether ``request`` has RocketMQ's signature, which does not cover its code."""
    given = request.ext.get(SIGNATURE_FIELD) if request.ext else None
    return given.__class__ is not str or _COLON not in given


class WholeSignatures:
    """The signatures over whole requests of one connection: each end has one of these.

    What is signed: a number of 8 bytes, the CBOR of [header type, code, flag, version, language, remark], the CBOR of
    the ext fields, and the body. So names, borders and types of fields count, and only the number by which answers are
    matched is free. The server serves a number once, and no lower one afterwards (`is_new`). That bounds what it
    remembers to one number. The server's address is in the key. A fake server that forwards a challenge of another
    server gets signatures for its own address, which the other server refuses.
    """

    __slots__ = ("_inner", "_last", "_outer", "_secret_key", "challenge", "server")

    def __init__(self, challenge: str, server: str = "") -> None:
        #: The challenge of the server; random.
        self.challenge = challenge
        #: ``ip:port`` of the server, as the client has connected to it; "" with old versions of Skylark.
        self.server = server
        # The number that was used last here, by the client to sign or by the server to check.
        self._last = 0
        self._secret_key: str | None = None

    def sign(self, request: Command, credentials: Credentials) -> None:
        """As the function `sign`. The request must be sent next on this connection."""
        ext = request.ext or {}
        if request.codec != CBOR:
            ext = text_ext(ext)
        elif None in ext.values():
            ext = {name: value for name, value in ext.items() if value is not None}
        ext = {**ext, ACCESS_KEY_FIELD: credentials.access_key}
        # A request that is sent again has its old signature.
        ext.pop(SIGNATURE_FIELD, None)
        if credentials.security_token:
            ext[SECURITY_TOKEN_FIELD] = credentials.security_token
        self._last = number = self._last + 1
        ext[SIGNATURE_FIELD] = f"{number}{_COLON}{self._hash(number, request, ext, credentials.secret_key)}"
        request.ext = ext

    def is_new(self, request: Command) -> bool:
        """Call it for each request of the connection, in the order of arrival: False for a request that came before.

        Signatures are not checked here, so whoever can write into the connection of somebody else can make it useless.
        """
        signature = (request.ext or {}).get(SIGNATURE_FIELD)
        if signature.__class__ is not str:
            return True
        digits, colon, _ = signature.partition(_COLON)
        if not colon or (number := _number(digits)) == 0:
            return True
        if number <= self._last:
            return False
        self._last = number
        return True

    def is_signed_with(self, request: Command, secret_key: str) -> bool:
        """Whether the whole signature of ``request`` was made with this key for this connection."""
        ext = (request.ext or {}).copy()
        signature = ext.pop(SIGNATURE_FIELD, None)
        if signature.__class__ is not str:
            return False
        digits, _, given = signature.partition(_COLON)
        if (number := _number(digits)) == 0:
            return False
        # Texts are compared in constant time if they are ASCII only, as every signature is.
        return given.isascii() and hmac.compare_digest(self._hash(number, request, ext, secret_key), given)

    def sealing_key(self, secret_key: str) -> bytes:
        """The key of answers with secrets to whoever signs with ``secret_key`` on this connection."""
        purpose = _PURPOSE_SEAL % (self.server.encode(), self.challenge.encode())
        return hmac.digest(secret_key.encode(), purpose, "sha256")

    def _hash(self, number: int, request: Command, ext: Mapping[str, Any], secret_key: str) -> str:
        if secret_key != self._secret_key:
            # A connection has one user, as a rule.
            purpose = _PURPOSE_AT % self.server.encode() if self.server else _PURPOSE
            key = hmac.digest(secret_key.encode(), purpose + self.challenge.encode(), "sha256")
            self._inner, self._outer = _hashes_of(key, sha256)
            self._secret_key = secret_key
        fields = request.codec, request.code, request.flag, request.version, request.language, request.remark
        known = request.remark is None and len(request.language) <= _MAX_LANGUAGE
        head = _known_head(*fields) if known else strict_cbor.dumps(fields)
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(number.to_bytes(8, "big") + head + strict_cbor.dumps(ext))
        inner.update(request.body)
        outer.update(inner.digest())
        text: str = outer.hexdigest()
        return text


@lru_cache(maxsize=1_024)
def _known_head(*fields: object) -> bytes:
    """The CBOR of ``fields``, of which there are few: to make it each time would cost as much as the hash."""
    return strict_cbor.dumps(fields)


def _number(digits: str) -> int:
    """The number before the colon of a whole signature; 0 for any other text."""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS else 0


def content(ext: Mapping[str, Any], body: bytes, version: int) -> bytes:
    """The bytes that RocketMQ's signature covers: values of ``ext``, and ``body``. ``version`` is the sender's."""
    texts = [
        value if value.__class__ is str else ext_text(value)
        for name in _signed_fields(ext, version <= _LAST_WITHOUT_UNIQUE_KEY_QUERY)
        if (value := ext[name]) is not None
    ]
    # Java's text may hold half a surrogate pair, which no UTF-8 has; it cannot make a valid signature.
    return "".join(texts).encode(errors="replace") + body


def _signed_fields(ext: Mapping[str, Any], leaves_unique_key_query: bool) -> Sequence[str]:
    """The fields that are signed, in order."""
    names = tuple(ext)
    known = _ORDERS[leaves_unique_key_query]
    order = known.get(names)
    if order is None:
        left_out = (SIGNATURE_FIELD, _UNIQUE_KEY_QUERY) if leaves_unique_key_query else (SIGNATURE_FIELD,)
        order = sorted(name for name in names if name not in left_out)
        known.put(names, order, sum(100 + 4 * len(name) for name in names))
    return order


def signature(secret_key: str, signed: bytes) -> str:
    """The value of the field ``Signature``."""
    return _signature(secret_key, signed).decode()


def _signature(secret_key: str, signed: bytes) -> bytes:
    # HMAC as in RFC 2104: a hash of the outer key and of a hash of the inner key and the text. To begin with hashes
    # that have taken the keys already is twice as fast as hmac.digest.
    inner, outer = _keyed(secret_key)
    inner, outer = inner.copy(), outer.copy()
    inner.update(signed)
    outer.update(inner.digest())
    return b2a_base64(outer.digest(), newline=False)


@lru_cache(maxsize=1_024)
def _keyed(secret_key: str) -> tuple[Any, Any]:
    """The inner and the outer hash; there are as many as users sign in here, so a limited number."""
    key = secret_key.encode()
    return _hashes_of(sha1(key).digest() if len(key) > _BLOCK else key, sha1)


def _hashes_of(key: bytes, new_hash: Callable[[bytes], Any]) -> tuple[Any, Any]:
    """The inner and the outer hash of HMAC, which have taken ``key`` of at most one block."""
    key = key.ljust(_BLOCK, b"\0")
    return new_hash(bytes(byte ^ 0x36 for byte in key)), new_hash(bytes(byte ^ 0x5C for byte in key))
