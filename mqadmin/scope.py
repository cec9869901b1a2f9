"""The brokers that -b or -c choose, and running an operation at each of them.

A failure at one broker is printed at once and does not stop the others; the exit code is then 1.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import BrokerError, RouteNotFound, SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID
from skylark.sdk.admin.targets import Target, all_targets

# TOPIC_NOT_EXIST, SUBSCRIPTION_GROUP_NOT_EXIST
_ABSENT = (17, 26)


@lazy_dataclass(frozen=True, slots=True)
class Scope:
    """Where a command works: at the broker of -b, or at brokers of the cluster of -c. One of them is given."""

    broker_addr: str | None
    cluster_name: str | None


async def addr_of(session: Session, broker: str) -> str:
    """The address that -b gives, or that of the master, else of the lowest slave, of the broker that it names."""
    if ":" in broker:
        return broker
    return (await _find(session, broker, lambda one: one.broker_name)).addr


async def name_of(session: Session, broker: str) -> str:
    """The name that -b gives, or that of the broker with this address."""
    if ":" not in broker:
        return broker
    return (await _find(session, broker, lambda one: one.addr)).broker_name


async def _find(session: Session, wanted: str, what: Callable[[Target], str]) -> Target:
    """The first broker of which ``what`` is ``wanted``. UserError names all brokers when there is none."""
    every = all_targets(await session.admin.cluster_info())
    for one in every:
        if what(one) == wanted:
            return one
    known = ", ".join(f"{one.broker_name} ({one.addr})" for one in every) or "none"
    raise UserError(f"no broker {wanted} at this NameServer (it knows: {known}); check -b and -n")


async def chosen_addrs(session: Session, scope: Scope, *, slaves: bool = False) -> list[str]:
    """The address of -b, or the masters (``slaves``: all brokers) of the cluster -c; UserError when it has none."""
    if scope.broker_addr is not None:
        return [scope.broker_addr]
    assert scope.cluster_name is not None
    targets = all_targets(await session.admin.cluster_info(), scope.cluster_name)
    addrs = [one.addr for one in targets if slaves or one.broker_id == MASTER_ID]
    if not addrs:
        raise UserError(f"cluster {scope.cluster_name} has no master now; see mqadmin clusterList")
    return addrs


async def at_each(
    session: Session,
    addrs: Iterable[str],
    doing: str,
    act: Callable[[str], Awaitable[Any]],
    done: Callable[[str], str] | None,
    *,
    key: str = "brokerAddr",
) -> list[dict[str, Any]]:
    """Run ``act`` for each address in turn and print ``done(addr)`` after it. Returns the results for JSON."""
    results: list[dict[str, Any]] = []
    for addr in addrs:
        try:
            await act(addr)
        except SkylarkError as error:
            text = session.fail(error, doing)
            results.append({key: addr, "ok": False, "error": text})
        else:
            if done is not None:
                session.say(done(addr))
            results.append({key: addr, "ok": True, "error": None})
    return results


async def is_known(addrs: Iterable[str], look: Callable[[str], Awaitable[object]]) -> bool:
    """Whether ``look`` finds something at one of ``addrs``. Deletes succeed for names that never were, as in RocketMQ.

    ``look`` returns None, or is refused with a code of _ABSENT, where there is nothing. A server that cannot say counts
    as knowing it: the delete that follows tells what is wrong with that server.
    """
    for addr in addrs:
        try:
            if await look(addr) is not None:
                return True
        except RouteNotFound:
            continue
        except BrokerError as error:
            if error.code not in _ABSENT:
                return True
        except SkylarkError:
            return True
    return False


def all_ok(results: Iterable[dict[str, Any]]) -> bool:
    """Whether all results of `at_each` are ok."""
    return all(result["ok"] for result in results)
