"""Clients of tests wait long for an answer, unless a test says how long: the machine may stop for seconds."""

import inspect
from functools import cache
from typing import Any

import pytest

import skylark
import skylark.aio
import skylark.blocking

PATIENCE_MS = 30_000
CLIENTS = ("Admin", "Client", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer", "TransactionProducer")
OPTIONS = ("timeout_ms", "send_timeout_ms")


@cache
def _defaults() -> list[dict[str, Any]]:
    """The default options of each client, looked up once."""
    packages = (skylark, skylark.aio, skylark.blocking)
    return [inspect.unwrap(getattr(each, name).__init__).__kwdefaults__ for each in packages for name in CLIENTS]


def make_clients_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the SDK's clients other defaults until the end of a test."""
    for defaults in _defaults():
        for option in defaults.keys() & OPTIONS:
            monkeypatch.setitem(defaults, option, PATIENCE_MS)
