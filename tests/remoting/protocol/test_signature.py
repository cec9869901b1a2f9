"""Signatures that official clients made, and that ours are found to be right and others wrong."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.command import Command
from remoting.protocol.connection import Connection
from remoting.protocol.frame import encode
from remoting.protocol.signature import ACCESS_KEY_FIELD, Credentials, content, is_signed_with, sign
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


@pytest.mark.parametrize(("version", "expected"), [(399, b"1"), (400, b"true1")])
def test_old_clients_do_not_sign_the_kind_of_key(version: int, expected: bytes) -> None:
    assert content({"a": 1, "_UNIQUE_KEY_QUERY": True}, b"", version) == expected


def test_secrets_are_in_no_text() -> None:
    assert "secret" not in repr(Credentials("user", "secret", "secret token"))
