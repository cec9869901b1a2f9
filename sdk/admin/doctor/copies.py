"""Checks of broker sets: each has a master, and its slaves have what it has. Pure."""

from collections.abc import Iterator

from sdk.admin.doctor.facts import BrokerFacts, Facts
from sdk.admin.doctor.findings import FAIL, OK, WARN, Finding

MAX_LAG_BYTES = 16 * 1024 * 1024
MAX_LAG_MS = 10_000
_AWAY = "slaveAwayMs_"


def masters(facts: Facts) -> Iterator[Finding]:
    """Each set has a master: topics of one without can only be read."""
    for name, brokers in facts.sets.items():
        if not any(broker.is_master for broker in brokers):
            yield Finding(
                FAIL, name, f"has no master, only {len(brokers)} slaves: it takes no messages", "start its master again"
            )


def slaves(facts: Facts) -> Iterator[Finding]:
    """Each slave is near its master, a SYNC_MASTER has one, and none has gone away."""
    for brokers in facts.sets.values():
        master = next((broker for broker in brokers if broker.is_master and broker.error is None), None)
        if master is None:
            continue
        others = [broker for broker in brokers if not broker.is_master]
        if (
            not others
            and not master.has_controllers
            and master.config.get("brokerRole") == "SYNC_MASTER"
            and master.config.get("inSyncReplicas") != "1"
        ):
            remedy = "start a slave, or set brokerRole=ASYNC_MASTER"
            yield Finding(FAIL, master.where, "a SYNC_MASTER without a slave: sends are SLAVE_NOT_AVAILABLE", remedy)
        for slave in others:
            if slave.error is None:
                yield _lag(master, slave)
        if not master.has_controllers:
            yield from _away(master, others)


def _away(master: BrokerFacts, slaves: list[BrokerFacts]) -> Iterator[Finding]:
    """Slaves that the master remembers, and that NameServers know no more. Controllers know that better."""
    away = {key.removeprefix(_AWAY): value for key, value in master.info.items() if key.startswith(_AWAY)}
    left = sum(slave.error is None for slave in slaves)
    for addr in sorted(away.keys() - {slave.addr for slave in slaves}):
        text = f"its slave {addr} has been away for {(_number(away[addr]) or 0) / 1000:,.0f} s"
        remedy = "start it again; if it will not return, its master forgets it after a day"
        if left:
            yield Finding(WARN, master.where, f"{text}; {left} are left", remedy)
        else:
            yield Finding(FAIL, master.where, f"{text}, and no other is left: the master has the only copy", remedy)


def _lag(master: BrokerFacts, slave: BrokerFacts) -> Finding:
    reported = _number(master.info.get(f"slaveAckDiff_{slave.addr}"))
    lag_ms = _number(master.info.get(f"slaveBehindMs_{slave.addr}")) or 0
    ends = [_number(broker.info.get("commitLogMaxOffset")) for broker in (master, slave)]
    behind = reported
    if behind is None and ends[0] is not None and ends[1] is not None:
        behind = max(ends[0] - ends[1], 0)
    if behind is None:
        return Finding(WARN, slave.where, "how far it is behind its master is unknown", "see mqadmin haStatus")
    text = f"{behind:,} bytes and {lag_ms / 1000:.1f} s behind its master"
    most = _number(master.config.get("haMaxGapNotInSync")) or 256 * 1024 * 1024
    remedy = "look at its log and at the network between the two; see mqadmin haStatus"
    if behind >= most:
        return Finding(FAIL, slave.where, f"{text}: it is not in sync", remedy)
    if behind > MAX_LAG_BYTES or lag_ms > MAX_LAG_MS:
        return Finding(WARN, slave.where, text, remedy)
    return Finding(OK, slave.where, text)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
