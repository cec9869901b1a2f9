"""Sealed answers: read by who signed on the same connection, and by nobody else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.remoting.protocol.sealing import NONCE_BYTES, seal, unseal
from skylark.remoting.protocol.signature import WholeSignatures

KEY = WholeSignatures("challenge", "10.0.0.5:10911").sealing_key("secret")


NONCE, OTHER = bytes(NONCE_BYTES), b"x" * NONCE_BYTES


@given(st.binary(max_size=200))
def test_what_is_sealed_is_opened_and_not_seen(body: bytes) -> None:
    sealed = seal(KEY, body, NONCE)
    assert unseal(KEY, sealed) == body
    assert unseal(KEY, seal(KEY, body, OTHER)) == body
    assert sealed != seal(KEY, body, OTHER)
    assert len(body) < 4 or body not in sealed


@given(st.data())
def test_what_was_changed_is_refused(data: st.DataObject) -> None:
    sealed = bytearray(seal(KEY, b"a password", NONCE))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProtocolError, match="another connection or secret"):
        unseal(KEY, bytes(sealed))
    with pytest.raises(ProtocolError):
        unseal(KEY, bytes(sealed[: data.draw(st.integers(0, len(sealed) - 1))]))


def test_the_key_is_of_one_secret_and_one_connection() -> None:
    keys = {
        WholeSignatures(challenge, server).sealing_key(secret)
        for challenge in ("c1", "c2") for server in ("", "10.0.0.5:10911") for secret in ("s1", "s2")
    }  # fmt: skip
    assert len(keys) == 8
