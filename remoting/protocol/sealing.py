"""Answers with secrets, encrypted for the signer of the request. Pure.

The key belongs to the connection (`WholeSignatures.sealing_key`): both ends know the key, and nobody who listens does.
The body is covered by a stream of SHAKE-256 of key and nonce, and then authenticated by HMAC-SHA256:

    nonce, 16 bytes | hash, 32 bytes | body XOR stream

Everything else needs TLS: without TLS, whoever listens can read messages.
"""

import hmac
from hashlib import shake_256
from typing import Final

from skylark.mqcommon.errors import ProtocolError

#: In the ext fields of an answer whose body is sealed.
SEALED_FIELD: Final = "sealed"
#: How long a nonce is, which must be random, and used for nothing else.
NONCE_BYTES: Final = 16
_HASH: Final = 32


def seal(key: bytes, body: bytes, nonce: bytes) -> bytes:
    """``body``, encrypted and authenticated. ``nonce``: bytes that are used with ``key`` only once."""
    hidden = _covered(key, nonce, body)
    return nonce + _hash(key, nonce + hidden) + hidden


def unseal(key: bytes, sealed: bytes) -> bytes:
    """The body. ProtocolError when it was not sealed with this key."""
    nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
    given, hidden = rest[:_HASH], rest[_HASH:]
    if not hmac.compare_digest(given, _hash(key, nonce + hidden)):
        raise ProtocolError(
            "the answer was sealed for another connection or secret: if the secret was just changed, use the new one;"
            " else somebody between changes answers"
        )
    return _covered(key, nonce, hidden)


def _covered(key: bytes, nonce: bytes, body: bytes) -> bytes:
    stream = shake_256(b"stream" + key + nonce).digest(len(body))
    return (int.from_bytes(body, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(body), "big")


def _hash(key: bytes, text: bytes) -> bytes:
    return hmac.digest(hmac.digest(key, b"hash", "sha256"), text, "sha256")
