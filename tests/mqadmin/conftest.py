"""What tests of several commands need."""

import time
from collections.abc import Iterator

import pytest

from tests.support.patience import make_clients_patient


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    make_clients_patient(monkeypatch)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times are printed in UTC, as in golden."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
