"""Requests that the master of any broker set can answer, so that no call waits for a master that does not answer."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.protocol.requests.routes import BrokerData

T = TypeVar("T")

# When a master has not answered within this time, the next is asked, too. Most answer within milliseconds.
SOON_S = 0.5


class Asked(NamedTuple, Generic[T]):
    """The outcome. ``found``: the first answer of a master that has the object.

    ``is_missing``: a master has answered that it has no such object. ``error``: why a master could not be asked.
    """

    found: T | None
    is_missing: bool
    error: SkylarkError | None


async def ask_masters(brokers: Iterable[BrokerData], ask: Callable[[str], Awaitable[T | None]]) -> Asked[T]:
    """Ask masters until one has the wanted object. ``ask`` returns None when its broker has no such object."""
    left = [addr for broker in brokers if (addr := broker.broker_addrs.get(MASTER_ID)) is not None]
    asked: list[asyncio.Future[T | None]] = []
    is_missing, failed = False, None
    waiting: set[asyncio.Future[T | None]] = set()
    try:
        while left or waiting:
            if left:
                asked.append(asyncio.ensure_future(ask(left.pop(0))))
                waiting.add(asked[-1])
            done, waiting = await asyncio.wait(
                waiting, timeout=SOON_S if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for one in done:
                try:
                    if (found := one.result()) is not None:
                        return Asked(found, is_missing, failed)
                    is_missing = True
                except SkylarkError as error:
                    failed = error
        return Asked(None, is_missing, failed)
    finally:
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
