"""All checks, in the order in which they are shown."""

from collections.abc import Iterable, Iterator

from sdk.admin.doctor import brokers, certificates, controllers, copies, groups, name_servers
from sdk.admin.doctor.facts import Facts
from sdk.admin.doctor.findings import WARN, Check, Finding

CHECKS: tuple[tuple[str, Check], ...] = (
    ("nameserver", name_servers.reachable),
    ("routes", name_servers.agreeing),
    ("rivals", name_servers.uncontested),
    ("broker", brokers.reachable),
    ("address", brokers.advertised),
    ("port", brokers.ports),
    ("clock", brokers.clocks),
    ("certificate", certificates.ends),
    ("version", brokers.versions),
    ("disk", brokers.disks),
    ("master", copies.masters),
    ("replication", copies.slaves),
    ("controller", controllers.reachable),
    ("sync-state-set", controllers.replicas),
    ("lag", groups.lags),
    ("subscription", groups.subscriptions),
    ("dead-letters", groups.dead_letters),
    ("setting", brokers.settings),
)


def run_checks(facts: Facts, checks: Iterable[tuple[str, Check]] = CHECKS) -> Iterator[tuple[str, Finding]]:
    """What each check finds, with its name; a check that goes wrong is a finding of its own."""
    for question, reason in facts.unanswered:
        yield "facts", Finding(WARN, question, reason, "what depends on it is not checked")
    for name, check in checks:
        try:
            found = list(check(facts))
        except Exception as error:  # a server of a kind that nobody thought of
            yield (
                name,
                Finding(WARN, "doctor", f"this check failed: {error!r}", "report it, with the versions of the servers"),
            )
        else:
            yield from ((name, finding) for finding in found)
