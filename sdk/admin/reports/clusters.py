"""Clusters: each broker with its load, and brokers that are away."""

import time
from dataclasses import field

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.protocol.requests.routes import AbsentBroker
from skylark.sdk.admin.client import Admin
from skylark.sdk.admin.reports.broker_load import BrokerLoad, BrokerTotals, SlaveLag, lag_of, load_of, totals_of
from skylark.sdk.admin.reports.problems import OnProblem, OnProgress, ask_each, report_unanswered
from skylark.sdk.admin.reports.report import FLAT, OPTIONAL, named
from skylark.sdk.admin.targets import all_targets


@lazy_dataclass(frozen=True, slots=True)
class ClusterRow:
    """One broker with its load.

    ``contested_by``: the address of another process that registers as the same broker. ``is_answered``: whether the
    broker has answered; otherwise its load is 0.
    """

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_addr: str
    load: BrokerLoad = field(metadata=FLAT)
    lag: SlaveLag = field(metadata=FLAT)
    contested_by: str | None = field(metadata=OPTIONAL)
    is_answered: bool = field(metadata=named("ok"))


@lazy_dataclass(frozen=True, slots=True)
class ClusterTotals:
    """One broker with its counts of messages; see `ClusterRow`."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_addr: str
    totals: BrokerTotals = field(metadata=FLAT)
    contested_by: str | None = field(metadata=OPTIONAL)
    is_answered: bool = field(metadata=named("ok"))


@lazy_dataclass(frozen=True, slots=True)
class ClusterReport:
    """The brokers that NameServers list, by cluster, name and id, and the brokers that they know to be away."""

    rows: tuple[ClusterRow, ...]
    totals: tuple[ClusterTotals, ...]
    absent: tuple[AbsentBroker, ...]


async def cluster_report(
    admin: Admin, cluster: str | None = None, *, on_problem: OnProblem, on_progress: OnProgress | None = None
) -> ClusterReport:
    """The brokers of ``cluster``, or of all clusters."""
    info = await admin.cluster_info()
    targets = all_targets(info, cluster)
    answers = await ask_each((one.addr for one in targets), admin.broker_runtime_info, on_progress)
    report_unanswered("broker", answers, on_problem)
    masters = {one.broker_name: one.addr for one in targets if one.broker_id == MASTER_ID}
    now_ms = int(time.time() * 1000)
    rows: list[ClusterRow] = []
    totals: list[ClusterTotals] = []
    for one in targets:
        table = answers.values.get(one.addr, {})
        rival = (info.contested or {}).get(one.broker_name, {}).get(one.broker_id)
        place = (one.cluster, one.broker_name, one.broker_id, one.addr)
        is_answered = one.addr in answers.values
        lag = lag_of(one, answers.values, masters)
        rows.append(ClusterRow(*place, load_of(table, now_ms), lag, rival, is_answered))
        totals.append(ClusterTotals(*place, totals_of(table), rival, is_answered))
    absent = tuple(one for one in info.absent_brokers or () if cluster in (None, one.cluster))
    return ClusterReport(tuple(rows), tuple(totals), absent)
