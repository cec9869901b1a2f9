"""What createAcl, updateAcl, deleteAcl and listAcl do to policies."""

from broker.security.users.edits import containing, merged, without
from tests.broker.security.users.rows import acl, entry


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
