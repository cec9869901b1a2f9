"""Which brokers a question or a change is for, and whether any of them knows a name."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from skylark.mqcommon.errors import BrokerError, RouteNotFound, SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID
from skylark.sdk.admin.targets import all_targets

if TYPE_CHECKING:
    from skylark.sdk.admin.client import Admin

# TOPIC_NOT_EXIST, SUBSCRIPTION_GROUP_NOT_EXIST
_ABSENT = (17, 26)


@lazy_dataclass(frozen=True, slots=True)
class Scope:
    """The broker at an address, or brokers of a cluster. Exactly one member is given."""

    broker_addr: str | None
    cluster_name: str | None


async def addrs_in(admin: "Admin", scope: Scope, *, slaves: bool = False) -> list[str]:
    """The broker's address, or the masters (``slaves``: all brokers) of the cluster; UserError when it has none."""
    if scope.broker_addr is not None:
        return [scope.broker_addr]
    assert scope.cluster_name is not None
    targets = all_targets(await admin.cluster_info(), scope.cluster_name)
    addrs = [one.addr for one in targets if slaves or one.broker_id == MASTER_ID]
    if not addrs:
        raise UserError(f"cluster {scope.cluster_name} has no master now; see mqadmin clusterList")
    return addrs


async def is_known(addrs: Iterable[str], look_up: Callable[[str], Awaitable[object]]) -> bool:
    """Whether ``look_up`` finds a name at one of ``addrs``. As in RocketMQ, deletes succeed even for unknown names.

    For an unknown name ``look_up`` returns None, or raises a BrokerError with a code of _ABSENT. A server that fails
    counts as knowing the name: the delete that follows reports what is wrong with that server.
    """
    for addr in addrs:
        try:
            if await look_up(addr) is not None:
                return True
        except RouteNotFound:
            continue
        except BrokerError as error:
            if error.code not in _ABSENT:
                return True
        except SkylarkError:
            return True
    return False
