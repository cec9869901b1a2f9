"""Checks of NameServers: each answers, all of them say the same, and no broker has the name of another. Pure."""

from collections.abc import Iterator

from sdk.admin.doctor.facts import Facts, NameServerFacts
from sdk.admin.doctor.findings import FAIL, OK, WARN, Finding, few


def reachable(facts: Facts) -> Iterator[Finding]:
    """Every NameServer answers."""
    for one in facts.name_servers:
        if one.error is None:
            yield Finding(OK, one.addr, f"answers, and knows {len(one.brokers)} broker names, {len(one.topics)} topics")
        elif one.refused:
            yield Finding(WARN, one.addr, one.error)
        else:
            yield Finding(FAIL, one.addr, one.error, "start it, or take it out of namesrvAddr of brokers and clients")


def agreeing(facts: Facts) -> Iterator[Finding]:
    """All of them know the same brokers and topics: each client asks only one."""
    answering = [one for one in facts.name_servers if one.error is None]
    brokers = {address for one in answering for address in _addresses(one)}
    topics = {topic for one in answering for topic in one.topics}
    for one in answering:
        if missing := brokers - _addresses(one):
            yield Finding(
                WARN, one.addr, f"does not know these brokers, others do: {few(missing)}",
                "give these brokers all NameServers in namesrvAddr; look at their logs for failed registrations",
            )  # fmt: skip
        elif absent := topics - one.topics:
            yield Finding(
                WARN, one.addr, f"does not know these topics, others do: {few(absent)}",
                "wait for the brokers' next registration (30 s); delete topics with mqadmin deleteTopic at all of them",
            )  # fmt: skip
        elif len(answering) > 1:
            yield Finding(OK, one.addr, "knows what the others know")


def uncontested(facts: Facts) -> Iterator[Finding]:
    """No two brokers share a name and an id."""
    seen = set()
    for one in facts.name_servers:
        for name, addrs in one.contested.items():
            for broker_id, rival in addrs.items():
                addr = one.brokers.get(name, {}).get(broker_id, "?")
                seen.add((f"{name}:{broker_id}", addr, rival))
    for where, addr, rival in sorted(seen):
        yield Finding(
            FAIL, where, f"registered from {addr} and from {rival}",
            "stop one of them, or give it another brokerName or brokerId",
        )  # fmt: skip


def _addresses(one: NameServerFacts) -> set[str]:
    return {_text(name, broker_id, addr) for name, addrs in one.brokers.items() for broker_id, addr in addrs.items()}


def _text(name: str, broker_id: int, addr: str) -> str:
    return f"{name}:{broker_id} {addr}"
