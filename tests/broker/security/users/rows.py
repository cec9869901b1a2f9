"""Users and policies for tests."""

from skylark.remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

SECRET = "secret-of-a-user"


def user(name: str, user_type: str = "Normal", status: str = "enable") -> UserInfo:
    return UserInfo(name, SECRET, user_type, status)


def entry(resource: str, actions: str, decision: str = "Allow", *ips: str) -> PolicyEntryInfo:
    return PolicyEntryInfo(resource, actions.split(","), list(ips) or None, decision)


def acl(name: str, *entries: PolicyEntryInfo, default: tuple[PolicyEntryInfo, ...] = ()) -> AclInfo:
    policies = [PolicyInfo("Custom", list(entries))] if entries else []
    return AclInfo(f"User:{name}", [*policies, PolicyInfo("Default", list(default))] if default else policies)
