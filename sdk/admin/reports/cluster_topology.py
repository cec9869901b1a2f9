"""The topology of clusters, asked of their brokers; see `skylark.sdk.admin.topology`."""

from skylark.mqcommon.names import MASTER_ID
from skylark.sdk.admin.client import Admin
from skylark.sdk.admin.reports.broker_load import lag_of, load_of
from skylark.sdk.admin.reports.problems import OnProblem, OnProgress, ask_each, report_unanswered
from skylark.sdk.admin.targets import Target, all_targets
from skylark.sdk.admin.topology import SetFacts, SetMember, Topology, lags_of, topology


async def cluster_topology(
    admin: Admin, cluster: str | None = None, *, on_problem: OnProblem, on_progress: OnProgress | None = None
) -> Topology:
    """The sets, topics and groups of ``cluster``, or of all clusters.

    A broker that has not answered is listed, without its topics and lags.
    """
    targets = all_targets(await admin.cluster_info(), cluster)
    infos = await ask_each((one.addr for one in targets), admin.broker_runtime_info, on_progress)
    report_unanswered("broker", infos, on_problem)
    # The set's topics and groups are asked of its master, or of the lowest slave while there is none.
    first: dict[tuple[str, str], Target] = {}
    for target in targets:
        if target.addr in infos.values:
            first.setdefault((target.cluster, target.broker_name), target)
    addrs = [one.addr for one in first.values()]
    configs = await ask_each(addrs, admin.all_topic_config, on_progress)
    stats = await ask_each(addrs, admin.broker_consume_stats, on_progress)
    report_unanswered("topics of broker", configs, on_problem)
    report_unanswered("groups of broker", stats, on_problem)
    masters = {one.broker_name: one.addr for one in targets if one.broker_id == MASTER_ID}
    found: dict[tuple[str, str], SetFacts] = {}
    for target in targets:
        key = target.cluster, target.broker_name
        facts = found.setdefault(key, SetFacts(target.cluster, target.broker_name))
        load = load_of(infos.values.get(target.addr, {}), 0)
        facts.brokers.append(
            SetMember(
                target.broker_id,
                target.addr,
                load.version,
                load.in_tps,
                load.out_tps,
                lag_of(target, infos.values, masters),
                None if target.addr in infos.values else "no answer",
            )
        )
        if first.get(key) is target:
            if (topics := configs.values.get(target.addr)) is not None:
                facts.queues = {
                    name: (one.read_queue_nums, one.write_queue_nums) for name, one in topics.topic_config_table.items()
                }
            if (groups := stats.values.get(target.addr)) is not None:
                facts.lags = lags_of(groups)
    return topology(found.values())
