"""What tests of the broker share: patient clients, since an answer that comes too late makes a producer send again."""

import pytest

from tests.support.patience import make_clients_patient


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    make_clients_patient(monkeypatch)
