"""What tests of the SDK share: patient clients, and a cluster."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sdk.consumer.push_cluster import push_cluster
from tests.support.in_process import Servers
from tests.support.patience import make_clients_patient


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    make_clients_patient(monkeypatch)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Servers]:
    async with push_cluster(tmp_path) as made:
        yield made
