"""Checks of NameServers: each answers, all of them say the same, and no broker has the name of another. Pure."""

from collections import Counter
from collections.abc import Iterator

from sdk.admin.doctor.facts import Facts, NameServerFacts
from sdk.admin.doctor.findings import FAIL, OK, WARN, Finding, few


def reachable(facts: Facts) -> Iterator[Finding]:
    """Every NameServer answers. While two of them do, clients and brokers survive the loss of one more."""
    alive = sum(one.error is None or one.refused for one in facts.name_servers)
    for one in facts.name_servers:
        if one.error is None:
            yield Finding(OK, one.addr, f"answers, and knows {len(one.brokers)} broker names, {len(one.topics)} topics")
        elif one.refused:
            yield Finding(WARN, one.addr, one.error)
        else:
            text = f"{one.error}; {alive} of {len(facts.name_servers)} are left" if alive else one.error
            remedy = "start it, or take it out of namesrvAddr of brokers and clients"
            yield Finding(WARN if alive > 1 else FAIL, one.addr, text, remedy)


def agreeing(facts: Facts) -> Iterator[Finding]:
    """All of them know the same brokers and topics: each client asks only one."""
    answering = [one for one in facts.name_servers if one.error is None]
    known_by = Counter(address for one in answering for address in _addresses(one))
    topics = {topic for one in answering for topic in one.topics}
    yield from _split(answering)
    for one in answering:
        if missing := known_by.keys() - _addresses(one):
            remedy = "give these brokers all NameServers in namesrvAddr; look at their logs for failed registrations"
            alone = [address for address in missing if known_by[address] == 1]
            text = f"does not know these brokers, others do: {few(missing)}"
            if alone:
                text += f"; only one NameServer knows {few(alone)}"
            yield Finding(FAIL if alone else WARN, one.addr, text, remedy)
        elif absent := topics - one.topics:
            yield Finding(
                WARN, one.addr, f"does not know these topics, others do: {few(absent)}",
                "wait for the brokers' next registration (30 s); delete topics with mqadmin deleteTopic at all of them",
            )  # fmt: skip
        elif len(answering) > 1:
            yield Finding(OK, one.addr, "knows what the others know")


def _split(answering: list[NameServerFacts]) -> Iterator[Finding]:
    """NameServers that have different addresses for one broker send clients to different brokers."""
    addrs: dict[tuple[str, int], dict[str, list[str]]] = {}
    for one in answering:
        for name, by_id in one.brokers.items():
            for broker_id, addr in by_id.items():
                addrs.setdefault((name, broker_id), {}).setdefault(addr, []).append(one.addr)
    for (name, broker_id), by_addr in sorted(addrs.items()):
        if len(by_addr) > 1:
            text = "; ".join(f"{addr} by {few(servers)}" for addr, servers in sorted(by_addr.items()))
            yield Finding(
                FAIL, f"{name}:{broker_id}", f"known at different addresses: {text}",
                "stop the broker that does not belong there; restart the NameServer that has an old address",
            )  # fmt: skip


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
