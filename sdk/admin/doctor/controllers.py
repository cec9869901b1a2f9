"""Checks of Controllers and of the sets whose masters they choose. Pure."""

from collections.abc import Iterator

from sdk.admin.doctor.facts import Facts, ReplicaSetFacts
from sdk.admin.doctor.findings import FAIL, OK, WARN, Finding, few


def reachable(facts: Facts) -> Iterator[Finding]:
    """Each Controller answers, one of them leads, and one more may be lost."""
    away = [one for one in facts.controllers if one.error is not None]
    for one in facts.controllers:
        if one.error is not None:
            yield Finding(WARN, one.addr, one.error, "start it, or take it out of the group: mqadmin controllerMembers")
        elif one.is_leader:
            yield Finding(OK, one.addr, "leads the Controllers")
        elif one.leader:
            yield Finding(OK, one.addr, f"follows {one.leader}")
    if not facts.controllers:
        return
    total = len(facts.controllers)
    if not any(one.leader for one in facts.controllers):
        yield Finding(
            FAIL, "controllers", f"nobody leads, {total - len(away)} of {total} answer: no master can be chosen, and "
            "masters refuse sends when they cannot prove that they lead", "start Controllers until a majority runs",
        )  # fmt: skip
    elif away and total - len(away) - 1 <= total // 2:
        text = f"{total - len(away)} of {total} answer: when one more is lost there is no majority"
        yield Finding(FAIL, "controllers", text, "start the others")


def replicas(facts: Facts) -> Iterator[Finding]:
    """Each set has a master, and what it acknowledges is on more than one broker."""
    for name, known in facts.replica_sets.items():
        yield from _set(name, known)


def _set(name: str, known: ReplicaSetFacts) -> Iterator[Finding]:
    together, total = len(known.in_sync), len(known.in_sync) + len(known.others)
    dead = sorted(addr for addr, alive in {**known.in_sync, **known.others}.items() if not alive)
    behind = sorted(addr for addr, alive in known.others.items() if alive)
    text = f"SyncStateSet: {together} of {total} brokers"
    text += f"; not alive: {few(dead)}" if dead else ""
    text += f"; not in sync: {few(behind)}" if behind else ""
    remedy = "start those that are away; look at the logs of those that are not in sync, and at mqadmin getSyncStateSet"
    gone = f"if one will not return: mqadmin cleanBrokerMetadata -bn {name}"
    if not known.master:
        yield Finding(FAIL, name, f"has no master: it takes no messages. {text}", remedy)
    elif together == 1 and total > 1:
        yield Finding(FAIL, name, f"what is acknowledged now is on one broker only. {text}", f"{remedy}; {gone}")
    elif together < total or dead:
        yield Finding(WARN, name, text, f"{remedy}; {gone}")
    else:
        yield Finding(OK, name, text)
