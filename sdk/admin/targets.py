"""The broker processes of a cluster, as NameServers list them."""

from typing import TYPE_CHECKING

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.routes import ClusterInfo


@lazy_dataclass(frozen=True, slots=True)
class Target:
    """One broker process."""

    cluster: str
    broker_name: str
    broker_id: int
    addr: str


def all_targets(info: "ClusterInfo", cluster: str | None = None) -> list[Target]:
    """Every broker of ``cluster``, or of all; sorted by cluster, name and id."""
    known = sorted(info.cluster_addr_table)
    if cluster is not None and cluster not in known:
        names = ", ".join(known) or "none"
        raise UserError(f"no cluster {cluster!r} at this NameServer (it knows: {names}); check -c and -n")
    return [
        Target(one, name, broker_id, addr)
        for one in (known if cluster is None else [cluster])
        for name in sorted(info.cluster_addr_table[one])
        if name in info.broker_addr_table
        for broker_id, addr in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]
