"""The signature by which RocketMQ's clients prove who they are: HMAC-SHA1 over the fields and the body of a request.

The content is the values of all ext fields but the signature, in the order of their names, and then the body. A server
takes the values as they arrived, numbers and booleans as their text, so that any client's header can be checked.
Source: AclUtils and AclClientRPCHook of RocketMQ; the tests have signatures of official clients.
"""

import hmac
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha1
from typing import Any, Final

from mqcommon.bounded_cache import BoundedCache
from remoting.protocol.command import Command, ext_text

ACCESS_KEY_FIELD: Final = "AccessKey"
SIGNATURE_FIELD: Final = "Signature"
SECURITY_TOKEN_FIELD: Final = "SecurityToken"
# RocketMQ 4 does not sign this field; clients up to this version are taken to be of that kind.
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_LAST_WITHOUT_UNIQUE_KEY_QUERY: Final = 399
_BLOCK: Final = 64  # of SHA-1, in bytes
# Clients send the same fields in the same order again and again, and sorting them would take a third of the time. By
# whether the field above is left out.
_ORDERS: Final = (
    BoundedCache[tuple[str, ...], list[str]](1 << 20), BoundedCache[tuple[str, ...], list[str]](1 << 20),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who a client is. The secrets are in no repr, so that they get into no log."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key", "security_token"):
            # A secret that was passed as another argument by mistake must not be shown, so only its type is.
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a str, not {type(getattr(self, name)).__name__}")


def sign(request: Command, credentials: Credentials) -> None:
    """Add the fields of ``credentials`` and the signature. Ext fields and body must not change afterwards."""
    ext = {**(request.ext or {}), ACCESS_KEY_FIELD: credentials.access_key}
    if credentials.security_token:
        ext[SECURITY_TOKEN_FIELD] = credentials.security_token
    ext[SIGNATURE_FIELD] = signature(credentials.secret_key, content(ext, request.body, request.version))
    request.ext = ext


def is_signed_with(request: Command, secret_key: str) -> bool:
    """Whether the signature of ``request`` was made with this key. Takes the same time however much of it fits."""
    ext = request.ext or {}
    expected = _signature(secret_key, content(ext, request.body, request.version))
    return hmac.compare_digest(expected, ext_text(ext.get(SIGNATURE_FIELD, "")).encode(errors="replace"))


def content(ext: Mapping[str, Any], body: bytes, version: int) -> bytes:
    """What is signed. ``version`` is that of the sender."""
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
    key = (sha1(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    return sha1(bytes(byte ^ 0x36 for byte in key)), sha1(bytes(byte ^ 0x5C for byte in key))
