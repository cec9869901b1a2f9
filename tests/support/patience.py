"""Clients of tests wait long for an answer, unless a test says how long: the machine may stop for seconds."""

import inspect

import pytest

import skylark
import skylark.aio
import skylark.blocking

PATIENCE_MS = 30_000
CLIENTS = ("Admin", "Client", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer", "TransactionProducer")
OPTIONS = ("timeout_ms", "send_timeout_ms")


def make_clients_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the SDK's clients other defaults until the end of a test."""
    for package in (skylark, skylark.aio, skylark.blocking):
        for name in CLIENTS:
            defaults = inspect.unwrap(getattr(package, name).__init__).__kwdefaults__
            for option in defaults.keys() & OPTIONS:
                monkeypatch.setitem(defaults, option, PATIENCE_MS)
