"""Which entry decides, against a naive model and by hand."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.security.users.checks import containing, merged, without
from skylark.broker.security.users.policies import Policies, parse_resource
from skylark.remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo
from tests.broker.security.users.rows import acl, entry

NAMES = st.sampled_from(["a", "ab", "abc", "b", "n%a", "n%ab", "m%b"])
KINDS = st.sampled_from(["Topic", "Group", "Cluster"])
RESOURCES = st.one_of(
    st.just("*"),
    st.builds(
        "{}:{}{}".format,
        st.sampled_from(["Topic", "Group", "Cluster", "Namespace"]),
        st.sampled_from(["a", "ab", "n", "n%a", "b"]),
        st.sampled_from(["", "*"]),
    ),
    st.sampled_from(["Topic:*", "Group:*", "Namespace:*"]),
)
ACTIONS = st.lists(st.sampled_from(["All", "Pub", "Sub", "Get"]), min_size=1, max_size=2)
HOSTS = ("10.0.0.1", "10.0.1.1", "::1", "unknown")
SOURCES = st.lists(st.sampled_from(["10.0.0.0/24", "10.0.0.1", "10.0.0.0/8", "::/0"]), max_size=2)
ENTRIES = st.lists(
    st.builds(
        PolicyEntryInfo,
        RESOURCES,
        ACTIONS,
        SOURCES.map(lambda found: found or None),
        st.sampled_from(["Allow", "Deny"]),
    ),
    max_size=5,
)


def rank(resource: str, kind: str, name: str) -> tuple[int, int] | None:
    """How specific a resource is about the topic, group or cluster; lower is more; None when it is not about it."""
    if resource == "*":
        return (6, 0)
    of, _, pattern = resource.partition(":")
    tier, text = 0, name
    if of == "Namespace" and kind in ("Topic", "Group") and name.partition("%")[2]:
        tier, text = 3, name.partition("%")[0]
    elif of != kind:
        return None
    if pattern.endswith("*"):
        prefix = pattern[:-1]
        return (tier + 1, -len(prefix)) if text.startswith(prefix) else None
    return (tier, 0) if text == pattern else None


def expected(found: AclInfo, kind: str, name: str, actions: list[str], host: str) -> bool:
    """The rules of the module's docstring, one after the other, without any index."""
    return any(expected_of_one(found, kind, name, action, host) for action in actions)


def expected_of_one(found: AclInfo, kind: str, name: str, action: str, host: str) -> bool:
    for policy_type in ("Custom", "Default"):
        entries = [each for policy in found.policies if policy.policy_type == policy_type for each in policy.entries]
        matching = [
            (place, each)
            for each in entries
            if (place := rank(each.resource, kind, name)) is not None
            and (action in each.actions or "All" in each.actions)
            and (not each.source_ips or comes_from(host, each.source_ips))
        ]
        if matching:
            best = min(place for place, _ in matching)
            return all(each.decision == "Allow" for place, each in matching if place == best)
    return False


def comes_from(host: str, sources: list[str]) -> bool:
    return host != "unknown" and any(ip_address(host) in ip_network(source) for source in sources)


@given(ENTRIES, ENTRIES, KINDS, NAMES, st.lists(st.sampled_from(["Pub", "Sub", "Get"]), min_size=1, max_size=2),
       st.sampled_from(HOSTS))  # fmt: skip
def test_the_decision_is_that_of_the_naive_model(
    custom: list[PolicyEntryInfo], default: list[PolicyEntryInfo], kind: str, name: str, actions: list[str], host: str
) -> None:
    rows = acl("u", *custom, default=tuple(default))
    policies = Policies(rows)
    for _ in range(2):  # the second time it is remembered
        decision = policies.decide(kind, name, tuple(actions), host)
        assert decision.is_allowed == expected(rows, kind, name, actions, host)


@pytest.mark.parametrize(
    ("entries", "topic", "allowed", "by"),
    [
        ([], "T", False, ""),
        ([entry("Topic:T", "Pub")], "T", True, "Topic:T Pub Allow"),
        ([entry("Topic:T", "Sub")], "T", False, ""),
        ([entry("Topic:T", "All"), entry("Topic:*", "Pub", "Deny")], "T", True, "Topic:T All Allow"),
        ([entry("Topic:*", "Pub"), entry("Topic:T", "Pub", "Deny")], "T", False, "Topic:T Pub Deny"),
        ([entry("Topic:T*", "Pub", "Deny"), entry("Topic:Ta*", "Pub")], "Tab", True, "Topic:Ta* Pub Allow"),
        ([entry("Topic:T", "Pub"), entry("Topic:T", "Pub", "Deny")], "T", False, "Topic:T Pub Deny"),
        ([entry("Namespace:n", "Pub", "Deny"), entry("Topic:*", "Pub")], "n%T", True, "Topic:* Pub Allow"),
        ([entry("Namespace:n", "Pub"), entry("*", "All", "Deny")], "n%T", True, "Namespace:n Pub Allow"),
        ([entry("Namespace:n", "Pub"), entry("*", "All", "Deny")], "T", False, "* All Deny"),
        ([entry("Group:T", "Pub")], "T", False, ""),
    ],
)
def test_which_entry_decides(entries: list[PolicyEntryInfo], topic: str, allowed: bool, by: str) -> None:
    decision = Policies(acl("u", *entries)).decide("Topic", topic, ("Pub",), "10.0.0.1")
    assert (decision.is_allowed, decision.entry) == (allowed, by)


def test_default_policies_only_count_when_no_custom_one_matches() -> None:
    policies = Policies(acl("u", entry("Topic:T", "Pub", "Deny"), default=(entry("Topic:*", "Pub"),)))
    assert not policies.decide("Topic", "T", ("Pub",), "").is_allowed
    decision = policies.decide("Topic", "U", ("Pub",), "")
    assert (decision.is_allowed, decision.policy_type) == (True, "Default")


def test_one_of_several_actions_is_enough() -> None:
    policies = Policies(acl("u", entry("Topic:T", "Pub", "Deny"), entry("Topic:T", "Get")))
    assert policies.decide("Topic", "T", ("Pub", "Get"), "").is_allowed
    assert policies.decide("Topic", "T", ("Pub",), "").entry == "Topic:T Pub Deny"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("10.2.0.1", False), ("fe80::1%eth0", True), ("name", False)],
)
def test_addresses(host: str, allowed: bool) -> None:
    policies = Policies(acl("u", entry("Topic:T", "Pub", "Allow", "10.1.0.0/16", "fe80::/10")))
    assert policies.decide("Topic", "T", ("Pub",), host).is_allowed == allowed


@pytest.mark.parametrize("text", ["*", "Topic:*", "Topic:a", "Group:a*", "Cluster:c", "Namespace:n*"])
def test_a_resource_is_written_as_it_was_read(text: str) -> None:
    assert str(parse_resource(text)) == text


@pytest.mark.parametrize("text", ["", "Topic", "Topic:", "T:a", "Topic:a*b", "Topic: a", "Topic:**", "Topic:a "])
def test_what_is_no_resource(text: str) -> None:
    with pytest.raises(ValueError, match="give Topic:name"):
        parse_resource(text)


def test_kinds_may_come_in_any_case() -> None:
    assert str(parse_resource("topic:A*")) == "Topic:A*"


def test_new_entries_replace_those_about_the_same_resource() -> None:
    old = acl("u", entry("Topic:T", "Pub"), entry("Topic:U", "Pub"), default=(entry("Topic:T", "Sub"),))
    new = acl("u", entry("Topic:T", "Sub"), entry("Topic:T", "Pub", "Deny"))
    assert merged(old, new) == acl(
        "u", entry("Topic:U", "Pub"), entry("Topic:T", "Sub"), entry("Topic:T", "Pub", "Deny"),
        default=(entry("Topic:T", "Sub"),),
    )  # fmt: skip
    assert merged(None, new) == new


def test_entries_about_a_resource_are_taken_away() -> None:
    old = acl("u", entry("Topic:T", "Pub"), default=(entry("Topic:T", "Sub"),))
    assert without(old, "Default", "Topic:T") == acl("u", entry("Topic:T", "Pub"))
    assert without(old, "Custom", "Topic:U") == old
    assert without(acl("u", entry("Topic:T", "Pub")), "Custom", "Topic:T") is None


def test_entries_whose_resource_contains_a_text() -> None:
    rows = acl("u", entry("Topic:orders", "Pub"), entry("Group:g", "Sub"))
    assert containing(rows, "ord") == acl("u", entry("Topic:orders", "Pub"))
    assert containing(rows, "x") is None
    assert containing(rows, "") == rows
