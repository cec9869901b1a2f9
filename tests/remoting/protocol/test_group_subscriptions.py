"""Members of a group that do not subscribe to the same."""

import pytest

from skylark.remoting.protocol.group_subscriptions import MAX_MEMBERS, differences, wanted_of
from skylark.remoting.protocol.requests.clients import SQL92, SubscriptionData


def wanted(*subscriptions: tuple[str, str]) -> frozenset[tuple[str, str]]:
    return wanted_of("g", [SubscriptionData(topic, expression) for topic, expression in subscriptions])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((), (("%RETRY%g", "*"),)),
        ((("t", "a||b"),), (("t", " b || a "),)),
        ((("t", ""),), (("t", "*"),)),
        ((("t", "*"), ("u", "a")), (("u", "a"), ("t", "*"))),
    ],
)
def test_what_chooses_the_same_messages_is_equal(
    one: tuple[tuple[str, str], ...], other: tuple[tuple[str, str], ...]
) -> None:
    assert wanted(*one) == wanted(*other)


def test_tags_that_some_clients_send_as_a_set_count() -> None:
    assert wanted_of("g", [SubscriptionData("t", "", tags_set=["b", "a"])]) == wanted(("t", "a || b"))
    assert wanted_of("g", [SubscriptionData("t", "a", SQL92)]) != wanted(("t", "a"))


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({}, ""),
        ({wanted(("t", "*")): ["c1", "c2"]}, ""),
        (
            {wanted(("t", "red")): ["c1", "c3"], wanted(("t", "blue")): ["c2"]},
            "topic t is subscribed to as 'blue' by c2, as 'red' by c1, c3",
        ),
        (
            {wanted(("ma", "*"), ("x", "*")): ["c1"], wanted(("mb", "*"), ("x", "*")): ["c2"]},
            "topic ma is subscribed to as '*' by c1, not at all by c2; "
            "topic mb is subscribed to as '*' by c2, not at all by c1",
        ),
    ],
)
def test_who_differs_in_what_is_told(members: dict[frozenset[tuple[str, str]], list[str]], text: str) -> None:
    assert differences(members) == text


def test_the_text_is_bounded() -> None:
    clients = [f"client-{number}" * 50 for number in range(100)]
    members = {wanted(*((f"t{n}", f"{each}{n}" * 50) for n in range(50))): clients for each in range(50)}
    text = differences(members)
    assert len(text) < 8_000 and text.endswith("; others")
    assert text.count("client-99") < MAX_MEMBERS
