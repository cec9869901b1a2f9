"""A NameServer and a broker of ours in this process, whose delay levels are all one second, and push consumers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.support.in_process import Servers, servers

QUEUES = 4


@asynccontextmanager
async def push_cluster(home: Path, **others: Any) -> AsyncIterator[Servers]:
    """Topic ``t`` has four queues, ``one`` has one."""
    levels = " ".join(["1s"] * 18)
    with trio.fail_after(120):
        async with servers(home, {"t": QUEUES, "one": 1}, message_delay_level=levels, **others) as made:
            yield made
