"""What tests of a master and its slaves share."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.broker.replication.sets import namesrv


@pytest.fixture
async def options() -> AsyncIterator[dict[str, Any]]:
    """The options of a broker that is registered."""
    async with namesrv() as addr:
        yield {"namesrv_addr": addr}
