from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.namesrv.peer import Peer, Served, serve


@pytest.fixture
async def served(nursery: trio.Nursery, tmp_path: Path) -> Served:
    return await serve(nursery, tmp_path)


@pytest.fixture
async def peer(served: Served) -> AsyncIterator[Peer]:
    peer = await served.peer()
    yield peer
    await peer.stream.aclose()
