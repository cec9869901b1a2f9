"""Signatures of official clients; our own signatures are accepted, and wrong ones refused."""

import hmac
import json
from binascii import b2a_base64
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.remoting.protocol.cbor_header import decode_header
from skylark.remoting.protocol.command import CBOR, JSON, ROCKETMQ, Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.frame import encode
from skylark.remoting.protocol.signature import (
    ACCESS_KEY_FIELD,
    Credentials,
    WholeSignatures,
    content,
    is_signed_with,
    sign,
)
from skylark.remoting.protocol.strict_cbor import dumps
from tests.remoting.protocol.golden import WIRE, recorded, recorded_by_fake_server

SECRETS = {"": "", "AKcap": "SKcap", "rocketmq2": "12345678"}
TEXTS = st.text(max_size=12)
VALUES = TEXTS | st.integers(-(1 << 63), (1 << 63) - 1) | st.booleans() | st.none()


def signed_requests() -> list[Command]:
    commands = [each.command for name in ("java_5.3.3", "admin_5.3.3", "cpp") for each in recorded(name)]
    commands += [Connection().receive_data(frame)[0] for frame in recorded_by_fake_server()]
    commands = [command for command in commands if ACCESS_KEY_FIELD in (command.ext or {}) and not command.is_response]
    # One body was compressed, which the recording could not hold: it has replacement characters.
    return [command for command in commands if "\ufffd".encode() not in command.body]


def test_requests_of_official_clients_are_signed_as_expected() -> None:
    requests = signed_requests()
    assert len(requests) == 147
    assert {request.language for request in requests} == {"CPP", "JAVA"}
    for request in requests:
        assert request.ext is not None
        assert is_signed_with(request, SECRETS[request.ext[ACCESS_KEY_FIELD]]), request


def test_the_vector_of_a_sent_message() -> None:
    (vector,) = [
        each for each in json.loads(Path(WIRE.parent / "vectors.json").read_text())["signatures"]
        if each["accessKey"] == "AKcap"
    ]  # fmt: skip
    made = {request.ext["Signature"] for request in signed_requests() if request.code == vector["code"] and request.ext}
    assert vector["signature"] in made


@given(ext=st.dictionaries(TEXTS, VALUES, max_size=5), body=st.binary(max_size=20), key=st.text(min_size=1))
def test_a_signed_request_is_verified_on_the_other_side_of_the_wire(
    ext: dict[str, object], body: bytes, key: str
) -> None:
    request = Command(10, dict(ext), body)
    sign(request, Credentials("somebody", key, "token"))
    (arrived,) = Connection().receive_data(encode(request))
    assert is_signed_with(arrived, key)
    assert not is_signed_with(arrived, key + "x")
    arrived.body += b"!"
    assert not is_signed_with(arrived, key)


HEADERS = (JSON, ROCKETMQ, CBOR)


def two_ends() -> tuple[WholeSignatures, WholeSignatures]:
    """The signatures of one connection: the client's and the server's."""
    return WholeSignatures("a challenge"), WholeSignatures("a challenge")


def arrived(request: Command) -> Command:
    (found,) = Connection().receive_data(encode(request))
    return found


@given(
    ext=st.dictionaries(TEXTS, VALUES, max_size=5),
    body=st.binary(max_size=20),
    key=st.text(min_size=1),
    codec=st.sampled_from(HEADERS),
)
def test_a_whole_signature_is_verified_on_the_other_side_of_the_wire(
    ext: dict[str, object], body: bytes, key: str, codec: int
) -> None:
    client, server = two_ends()
    request = Command(10, dict(ext), body, codec=codec)
    client.sign(request, Credentials("somebody", key, "token"))
    found = arrived(request)
    assert server.is_new(found) and not server.is_new(found)
    assert is_signed_with(found, key, server)
    assert not is_signed_with(found, key), "on a connection without a challenge"
    assert not is_signed_with(found, key, WholeSignatures("another challenge"))
    assert not is_signed_with(found, key + "x", server)


def _set(name: str, value: object) -> Callable[[Command], None]:
    return lambda request: setattr(request, name, value)


def _ext(**fields: object) -> Callable[[Command], None]:
    """Fields changed; None takes one away."""

    def change(request: Command) -> None:
        merged = {**(request.ext or {}), **fields}
        request.ext = {name: value for name, value in merged.items() if value is not None}

    return change


# What somebody could do to a captured send. Some of it RocketMQ's signature does not see: it is the same there.
CHANGES: dict[str, tuple[Callable[[Command], None], bool]] = {
    "the code": (_set("code", 215), True),
    "answered or not": (_set("flag", 2), True),
    "the version": (_set("version", 400), True),
    "the language": (_set("language", "JAVA"), True),
    "a remark": (_set("remark", "x"), True),
    "the header type": (_set("codec", JSON), True),
    "the body": (_set("body", b"other"), False),
    "a field's value": (_ext(b="other"), False),
    "a field's type": (_ext(d="4"), True),
    "a field's name": (_ext(b=None, ba="topic"), True),
    "borders of fields": (_ext(a="grouptopi", b="c"), True),
    "a field fewer, and its value in the next": (_ext(a=None, b="grouptopic"), True),
    "the border to the body": (lambda request: (_ext(e=None)(request), _set("body", b"00body")(request))[0], False),
    "an empty field more": (_ext(z=""), True),
    "the number": (_ext(Signature="2"), False),
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_is_changed_in_a_captured_request_is_seen(what: str) -> None:
    change, is_unseen_by_the_other = CHANGES[what]
    who = Credentials("AKcap", "SKcap")
    client, server = two_ends()
    request, plain = (Command(310, {"a": "group", "b": "topic", "d": 4, "e": 0}, b"body", codec=CBOR) for _ in "ab")
    client.sign(request, who)
    sign(plain, who)
    assert is_signed_with(request, "SKcap", server) and is_signed_with(plain, "SKcap", server)
    signature = request.ext["Signature"] if request.ext else ""
    for each in (request, plain):
        change(each)
    if what == "the number":
        request.ext = {**(request.ext or {}), "Signature": "2" + signature[1:]}
    assert not is_signed_with(request, "SKcap", server)
    assert is_signed_with(plain, "SKcap", server) == is_unseen_by_the_other


def test_a_captured_whole_signature_is_no_signature_of_rocketmq() -> None:
    """The bytes that were hashed, cut into fields and a body so that RocketMQ's signature would cover the same."""
    client, server = two_ends()
    request = Command(310, {"a": "group"}, b"body", codec=CBOR)
    client.sign(request, Credentials("AKcap", "SKcap"))
    ext = dict(request.ext or {})
    number, _, mac = ext.pop("Signature").partition(":")
    head = dumps((CBOR, 310, 0, request.version, "PYTHON", None))
    hashed = int(number).to_bytes(8, "big") + head + dumps(ext) + b"body"
    key = hmac.digest(b"SKcap", b"skylark: requests of one connection, with the challenge a challenge", "sha256")
    assert hmac.digest(key, hashed, "sha256").hex() == mac, "docs/reference/wire.md says so"
    before, _, after = hashed.partition(b"AKcap")
    for signature in (mac, b2a_base64(bytes.fromhex(mac), newline=False).decode(), f"{number}:{mac}"):
        forged = Command(310, {"A": before, "AccessKey": "AKcap", "Signature": signature}, after, codec=CBOR)
        for whole in (None, server):
            assert not is_signed_with(forged, "SKcap", whole)


@pytest.mark.parametrize("signature", ["", "1", ":x", "0:x", "-1:x", "1" * 19 + ":x", "\u0661:x", 5, None, b"1:x"])
def test_what_is_no_whole_signature_is_no_replay_and_not_valid(signature: object) -> None:
    server = WholeSignatures("a challenge")
    request = Command(1, {"Signature": signature})
    assert server.is_new(request) and server.is_new(request)
    assert not is_signed_with(request, "key", server) and not server.is_signed_with(request, "key")


@given(st.binary(max_size=60))
def test_any_header_that_can_be_read_can_be_checked(data: bytes) -> None:
    try:
        request = decode_header(b"\x87\x0a\x03\x19\x01\xdf\x01\x00\xf6" + data)
    except ProtocolError:
        return
    request.ext = {**(request.ext or {}), "Signature": "1:x"}
    assert not is_signed_with(request, "key", WholeSignatures("a challenge"))


def test_a_lower_number_is_not_served_after_a_higher_one() -> None:
    client, server = two_ends()
    requests = [Command(1) for _ in range(4)]
    for request in requests:
        client.sign(request, Credentials("somebody", "key"))
    assert [server.is_new(requests[number]) for number in (0, 2, 1, 2, 3)] == [True, True, False, False, True]


@pytest.mark.parametrize(("version", "expected"), [(399, b"1"), (400, b"true1")])
def test_old_clients_do_not_sign_the_kind_of_key(version: int, expected: bytes) -> None:
    assert content({"a": 1, "_UNIQUE_KEY_QUERY": True}, b"", version) == expected


def test_secrets_are_in_no_text() -> None:
    assert "secret" not in repr(Credentials("user", "secret", "secret token"))
