"""Ask several servers at once, and keep apart what they said and what failed."""

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

from mqcommon.errors import BrokerError, SkylarkError

T = TypeVar("T")

AT_ONCE = 16


@dataclass(slots=True)
class Answers(Generic[T]):
    """What each server said, in the order asked; who failed is in ``errors``."""

    values: dict[str, T] = field(default_factory=dict)
    errors: dict[str, SkylarkError] = field(default_factory=dict)

    def all(self, *, ignore: Collection[int] = ()) -> list[T]:
        """Every value; raises the first error, unless its code is one of ``ignore`` and another server answered."""
        for error in self.errors.values():
            if not (self.values and isinstance(error, BrokerError) and error.code in ignore):
                raise error
        return list(self.values.values())

    def any(self) -> list[T]:
        """The values there are; raises the first error when there are none but errors."""
        if not self.values:
            for error in self.errors.values():
                raise error
        return list(self.values.values())


async def ask_all(addrs: Iterable[str], call: Callable[[str], Awaitable[T]]) -> Answers[T]:
    """``call`` for each address, some at a time."""
    order = list(dict.fromkeys(addrs))
    got: dict[str, T] = {}
    failed: dict[str, SkylarkError] = {}
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def ask_one(addr: str) -> None:
        async with limiter:
            try:
                got[addr] = await call(addr)
            except SkylarkError as error:
                failed[addr] = error

    async with trio.open_nursery() as nursery:
        for addr in order:
            nursery.start_soon(ask_one, addr)
    return Answers(
        {addr: got[addr] for addr in order if addr in got},
        {addr: failed[addr] for addr in order if addr in failed},
    )
