"""Users and policies that administrators send: checked, and merged into a subject's policies. Pure.

Wrong input is refused with RocketMQ's codes, and with texts that begin as RocketMQ's and continue with what to do.
Accepted input is normalized to one spelling: names of kinds, actions and decisions may come in any case.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from skylark.broker.security.users.policies import (
    ACTIONS,
    ALLOW,
    ANY,
    CUSTOM,
    DEFAULT,
    DENY,
    parse_resource,
    parse_source,
)
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.names import USERNAME_MAX_LENGTH, username_fault
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLE: Final = "enable"
DISABLE: Final = "disable"

MAX_USERS: Final = 10_000
#: Limits of the entries of one subject, and of all subjects: one answer lists all of them.
MAX_ENTRIES: Final = 1_000
MAX_ALL_ENTRIES: Final = 20_000
MAX_NAME: Final = USERNAME_MAX_LENGTH

_USER: Final = "User"
_USER_TYPES: Final = (SUPER, NORMAL)
_STATES: Final = (ENABLE, DISABLE)


def refuse(text: str) -> RequestRefused:
    """The refusal with ``text``. RocketMQ answers all errors about users and policies with NO_PERMISSION."""
    return RequestRefused(ResponseCode.NO_PERMISSION, text)


def checked_username(name: str) -> str:
    """The name without blanks around it. RequestRefused when no user can have it."""
    name = name.strip()
    if (fault := username_fault(name)) is not None:
        raise RequestRefused(ResponseCode.NO_PERMISSION if name else ResponseCode.SYSTEM_ERROR, fault)
    return name


def checked_user(info: UserInfo, name: str, old: UserInfo | None) -> UserInfo:
    """The user to store: ``info``, with missing fields from ``old``, or from the defaults if the user is new.

    RequestRefused when a field is wrong, or a new user has no password.
    """
    password = info.password if info.password and info.password.strip() else old.password if old else None
    if not password:
        raise refuse("password can not be blank: a user needs one")
    if len(password) > MAX_NAME:
        raise refuse(f"The password has {len(password)} characters; {MAX_NAME} are the most")
    old = old or UserInfo(user_type=NORMAL, user_status=ENABLE)
    user_type = _one_of(info.user_type or old.user_type, _USER_TYPES, "user type")
    return UserInfo(name, password, user_type, _one_of(info.user_status or old.user_status, _STATES, "user status"))


def user_of_subject(subject: str) -> str:
    """The user whom ``User:name`` names."""
    word, _, name = subject.partition(":")
    if word.lower() != _USER.lower() or not name.strip():
        raise refuse(f"The subject {subject!r} is no user: give User:name")
    return checked_username(name)


def subject_of(username: str) -> str:
    """The subject by which policies name the user."""
    return f"{_USER}:{username}"


def checked_acl(info: AclInfo, subject: str) -> AclInfo:
    """The policies that were sent for ``subject``, in one spelling. RequestRefused when something in them is wrong."""
    if not info.policies:
        raise refuse("The policies is empty: give at least one entry")
    if info.subject and subject_of(user_of_subject(info.subject)) != subject:
        raise refuse(f"The header is about {subject}, but the body about {info.subject}: give both the same subject")
    policies = [
        PolicyInfo(checked_policy_type(policy.policy_type), [_checked_entry(entry) for entry in policy.entries])
        for policy in info.policies
    ]
    if not all(policy.entries for policy in policies):
        raise refuse("The policy entries is empty: give at least one")
    return AclInfo(subject, policies)


def check_size(acl: AclInfo, others: int) -> None:
    """RequestRefused when the subject of ``acl``, or all subjects together, would have too many entries.

    ``others``: how many entries the other subjects have.
    """
    count = len(list(rows_of(acl)))
    if count > MAX_ENTRIES:
        raise refuse(f"{acl.subject} would have {count} entries; {MAX_ENTRIES} are the most: use prefixes, as Topic:a*")
    if count + others > MAX_ALL_ENTRIES:
        raise refuse(f"All users would have {count + others} entries; {MAX_ALL_ENTRIES} are the most: use prefixes")


def checked_policy_type(text: str | None) -> str:
    """The type of a policy in one spelling; Custom when it is not given. RequestRefused for an unknown type."""
    return _one_of(text or CUSTOM, (CUSTOM, DEFAULT), "policy type")


def checked_resource(text: str) -> str:
    """The resource in one spelling. RequestRefused when ``text`` is not a resource."""
    try:
        return str(parse_resource(text.strip()))
    except ValueError as error:
        raise refuse(f"The resource is wrong: {error}") from None


def _checked_entry(entry: PolicyEntryInfo) -> PolicyEntryInfo:
    actions = [_one_of(action, ACTIONS, "action") for action in entry.actions]
    if not actions:
        raise refuse(f"The actions is empty: give some of {', '.join(_without_any(ACTIONS))}")
    if ANY in actions:
        raise refuse("The actions can not be Any: give All, or the actions one by one")
    return replace(
        entry,
        resource=checked_resource(entry.resource),
        actions=list(dict.fromkeys(actions)),
        source_ips=[_checked_source(text) for text in entry.source_ips or ()] or None,
        decision=_one_of(entry.decision, (ALLOW, DENY), "decision"),
    )


def _checked_source(text: str) -> str:
    try:
        parse_source(text.strip())
    except ValueError as error:
        raise refuse(f"The source ip is invalid: {error}") from None
    return text.strip()


def _one_of(text: str | None, names: Iterable[str], what: str) -> str:
    for name in names:
        if (text or "").strip().lower() == name.lower():
            return name
    raise refuse(f"The {what} {text!r} is unknown: give {' or '.join(names)}")


def _without_any(names: Iterable[str]) -> list[str]:
    return [name for name in names if name != ANY]


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
