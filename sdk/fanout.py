"""Asks several servers at once, and collects answers and errors by address."""

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.errors import BrokerError, SkylarkError

T = TypeVar("T")

AT_ONCE = 16


@dataclass(slots=True)
class Answers(Generic[T]):
    """The answer or the error of each server by address, in the order in which they were given."""

    values: dict[str, T] = field(default_factory=dict)
    errors: dict[str, SkylarkError] = field(default_factory=dict)

    def all(self, *, ignore: Collection[int] = ()) -> list[T]:
        """All values. Raises the first error; those with a code in ``ignore`` only when no server answered."""
        for error in self.errors.values():
            if not (self.values and isinstance(error, BrokerError) and error.code in ignore):
                raise error
        return list(self.values.values())

    def any(self) -> list[T]:
        """The values of the servers that answered; raises the first error when none did."""
        if not self.values:
            for error in self.errors.values():
                raise error
        return list(self.values.values())


async def ask_all(addrs: Iterable[str], call: Callable[[str], Awaitable[T]]) -> Answers[T]:
    """Await ``call`` for each address, at most AT_ONCE at a time."""
    order = list(dict.fromkeys(addrs))
    got: dict[str, T] = {}
    failed: dict[str, SkylarkError] = {}
    limiter = trio.CapacityLimiter(AT_ONCE)

    @enable_ki_protection
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
