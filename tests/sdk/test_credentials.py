"""Credentials in files and in the environment."""

import re
from pathlib import Path

import pytest

from skylark import (
    Admin,
    Client,
    Credentials,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
    aio,
    blocking,
    read_credentials,
)
from skylark.mqcommon.errors import InvalidArgument, UserError
from skylark.sdk.credentials import credentials_in


def secret_file(folder: Path, text: str) -> Path:
    file = folder / "tools.yml"
    file.touch(0o600)
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    "text",
    [
        "accessKey: rocketmq2\nsecretKey: 12345678\n",
        "# of RocketMQ\n---\naccessKey: 'rocketmq2'\nsecretKey:  \"12345678\"  \n\n",
        "accessKey=rocketmq2\nsecretKey = 12345678\n",
        "accessKey: rocketmq2 # the administrator\nsecretKey: 12345678\n",
    ],
)
def test_a_file_as_rocketmqs_tools_have_it(tmp_path: Path, text: str) -> None:
    assert read_credentials(secret_file(tmp_path, text)) == Credentials("rocketmq2", "12345678")


def test_secrets_with_odd_characters(tmp_path: Path) -> None:
    file = secret_file(tmp_path, "accessKey: a\nsecretKey: a=b:c#d==\nsecurityToken: x=y\n")
    assert read_credentials(str(file)) == Credentials("a", "a=b:c#d==", "x=y")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "accessKey and secretKey must both be set"),
        ("accessKey: a\n", "accessKey and secretKey must both be set"),
        ("accessKey: a\nsecretKey:\n", "accessKey and secretKey must both be set"),
        ("accessKey: a\nsekretKey: hidden\n", ":2: not a key of credentials"),
        ("hidden\n", ":1: not a key of credentials"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(UserError, match=re.escape(error)) as raised:
        read_credentials(secret_file(tmp_path, text))
    assert "hidden" not in str(raised.value)


def test_the_environment() -> None:
    both = {"ROCKETMQ_ACCESS_KEY": "a", "ROCKETMQ_SECRET_KEY": "b"}
    assert credentials_in({}) is None
    assert credentials_in(both) == Credentials("a", "b")
    assert credentials_in(both | {"ROCKETMQ_SECURITY_TOKEN": "c"}) == Credentials("a", "b", "c")
    for name in both:
        with pytest.raises(UserError, match=f"{({*both} - {name}).pop()} is not set"):
            credentials_in({name: "x"})


CLASSES = {
    "Admin": {},
    "Producer": {},
    "PullConsumer": {},
    "PushConsumer": {"group": "g", "subscriptions": {"t": "*"}},
    "SimpleConsumer": {"group": "g", "subscriptions": {"t": "*"}},
    "TransactionProducer": {"group": "g"},
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_wrong_argument_is_refused_without_showing_it(name: str) -> None:
    cls = {
        each.__name__: each
        for each in (Admin, Producer, PullConsumer, PushConsumer, SimpleConsumer, TransactionProducer)
    }[name]
    with pytest.raises(TypeError, match=r"credentials must be Credentials\(access_key, secret_key\), not str$"):
        cls("127.0.0.1:1", credentials="secret", **CLASSES[name])
    with pytest.raises(TypeError, match="credentials must be Credentials"):
        Client("127.0.0.1:1", credentials=("a", "b"))  # type: ignore[arg-type]
    shared = Client("127.0.0.1:1")
    with pytest.raises(InvalidArgument, match="credentials cannot be given together with a shared Client"):
        cls(shared, credentials=Credentials("a", "b"), **CLASSES[name])
    assert cls("127.0.0.1:1", credentials=Credentials("a", "b"), **CLASSES[name])


@pytest.mark.parametrize("package", [aio, blocking])
def test_the_other_packages_take_credentials_too(package: object) -> None:
    for name, arguments in CLASSES.items():
        assert getattr(package, name)("127.0.0.1:1", credentials=Credentials("a", "b"), **arguments)
