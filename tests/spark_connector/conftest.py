"""What tests of the Spark connector share: patient clients, a Spark session, and spans."""

import pytest

from tests.support.patience import make_clients_patient
from tests.support.spans import seen
from tests.support.spark import spark

__all__ = ["seen", "spark"]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A send that waits too briefly on a busy machine is tried again, and stored twice."""
    make_clients_patient(monkeypatch)
