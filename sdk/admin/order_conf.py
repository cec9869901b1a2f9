"""The NameServers' record of an ordered topic: its number of queues on each broker, ``broker-a:4;broker-b:4``."""

from mqcommon.errors import UserError
from sdk.admin.session import Session
from sdk.admin.targets import all_targets

NAMESPACE = "ORDER_TOPIC_CONFIG"


async def set_order_conf(
    session: Session, topic: str, queue_nums: int, broker_addr: str | None, cluster_name: str | None
) -> str:
    """Record an ordered topic: replace the record for a cluster, or only the entry of one broker."""
    targets = all_targets(await session.admin.cluster_info(), cluster_name)
    if broker_addr is None:
        entries = {one.broker_name: str(queue_nums) for one in targets}
        scope = "cluster"
    else:
        name = next((one.broker_name for one in targets if one.addr == broker_addr), None)
        if name is None:
            raise UserError(f"no NameServer knows a broker at {broker_addr}, so the order of {topic} is not recorded")
        entries = parse_order_conf(await session.admin.get_kv(NAMESPACE, topic) or "")
        entries[name] = str(queue_nums)
        scope = "broker"
    order_conf = ";".join(f"{name}:{count}" for name, count in entries.items())
    await session.admin.put_kv(NAMESPACE, topic, order_conf)
    session.say(f"set {scope} orderConf. isOrder=true, orderConf=[{order_conf}]")
    return order_conf


def parse_order_conf(text: str) -> dict[str, str]:
    """Broker name → number of queues."""
    parts = (part.partition(":") for part in text.split(";") if part.strip())
    return {name: count for name, _, count in parts}
