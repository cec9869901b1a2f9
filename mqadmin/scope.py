"""The brokers that -b or -c choose, and running an operation at each of them.

A failure at one broker is printed at once and does not stop the others; the exit code is then 1.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import SkylarkError, UserError
from skylark.sdk.admin.scope import Scope, addrs_in, is_known
from skylark.sdk.admin.targets import Target, all_targets

if TYPE_CHECKING:
    from skylark.sdk.admin.reports.changes import BrokerChange, Change

C = TypeVar("C", bound="Change")

__all__ = ["Scope", "addr_of", "at_each", "at_servers", "chosen_addrs", "is_known", "name_of"]


async def addr_of(session: Session, broker: str) -> str:
    """The address in -b; if -b has a name, the address of the broker's master, else of its lowest slave."""
    if ":" in broker:
        return broker
    return (await _find(session, broker, lambda one: one.broker_name)).addr


async def name_of(session: Session, broker: str) -> str:
    """The name in -b; for an address in -b, the name of the broker there."""
    if ":" not in broker:
        return broker
    return (await _find(session, broker, lambda one: one.addr)).broker_name


async def _find(session: Session, wanted: str, what: Callable[[Target], str]) -> Target:
    """The first broker whose ``what`` equals ``wanted``. If there is none, UserError lists all brokers."""
    every = all_targets(await session.admin.cluster_info())
    for one in every:
        if what(one) == wanted:
            return one
    known = ", ".join(f"{one.broker_name} ({one.addr})" for one in every) or "none"
    raise UserError(f"no broker {wanted} at this NameServer (it knows: {known}); check -b and -n")


async def chosen_addrs(session: Session, scope: Scope, *, slaves: bool = False) -> list[str]:
    """The address of -b, or the masters (``slaves``: all brokers) of the cluster -c; UserError when it has none."""
    return await addrs_in(session.admin, scope, slaves=slaves)


async def at_each(
    session: Session,
    addrs: Iterable[str],
    doing: str,
    act: Callable[[str], Awaitable[object]],
    done: Callable[[str], str] | None,
) -> "list[BrokerChange]":
    """Run ``act`` for each broker in turn and print ``done(addr)`` after it. Returns the results for JSON."""
    from skylark.sdk.admin.reports.changes import BrokerChange

    return await at_servers(session, addrs, doing, act, done, BrokerChange)


async def at_servers(
    session: Session,
    addrs: Iterable[str],
    doing: str,
    act: Callable[[str], Awaitable[object]],
    done: Callable[[str], str] | None,
    made: Callable[[str, bool, str | None], C],
) -> list[C]:
    """As `at_each`, for servers of any kind; ``made`` is the kind of the results, as in `change_each`."""
    from skylark.sdk.admin.reports.changes import change_each

    def on_result(addr: str, error: SkylarkError | None) -> None:
        if error is not None:
            session.fail(error, doing)
        elif done is not None:
            session.say(done(addr))

    return await change_each(addrs, act, made, on_result)
