"""Changes of a subject's policies, as administrators ask for them. Pure; for entries that checks.py has checked."""

from collections.abc import Iterable, Iterator

from broker.security.users.policies import CUSTOM
from remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo, PolicyInfo

Row = tuple[str, PolicyEntryInfo]


def rows_of(acl: AclInfo) -> Iterator[Row]:
    """Each entry with the type of its policy."""
    for policy in acl.policies:
        for entry in policy.entries:
            yield policy.policy_type or CUSTOM, entry


def merged(old: AclInfo | None, new: AclInfo) -> AclInfo:
    """``old`` with the entries of ``new``, which replace all earlier ones of the same type and resource."""
    added = list(rows_of(new))
    replaced = {(policy_type, entry.resource) for policy_type, entry in added}
    kept = [row for row in (rows_of(old) if old else ()) if (row[0], row[1].resource) not in replaced]
    return _acl(new.subject, [*kept, *added])


def without(acl: AclInfo, policy_type: str, resource: str) -> AclInfo | None:
    """``acl`` without the entries about ``resource``; None when nothing is left."""
    kept = [row for row in rows_of(acl) if (row[0], row[1].resource) != (policy_type, resource)]
    return _acl(acl.subject, kept) if kept else None


def containing(acl: AclInfo, resource_filter: str) -> AclInfo | None:
    """The entries whose resource contains the text; None when there is none."""
    kept = [row for row in rows_of(acl) if resource_filter in row[1].resource]
    return _acl(acl.subject, kept) if kept else None


def _acl(subject: str, rows: Iterable[Row]) -> AclInfo:
    entries: dict[str, list[PolicyEntryInfo]] = {}
    for policy_type, entry in rows:
        entries.setdefault(policy_type, []).append(entry)
    return AclInfo(subject, [PolicyInfo(policy_type, each) for policy_type, each in entries.items()])
