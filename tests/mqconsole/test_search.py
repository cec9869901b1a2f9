import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqconsole.showing.search import MOST_OF_A_KIND, Hits, search
from skylark.mqconsole.watching.snapshot import BrokerRow, GroupRow, Snapshot, TopicRow
from skylark.sdk.admin.reports.broker_load import SlaveLag, load_of, totals_of


def snapshot(*topics: str, groups: tuple[str, ...] = ()) -> Snapshot:
    return Snapshot(
        brokers=[
            BrokerRow("prod", "broker-a", broker_id, addr, load_of({}, 0), SlaveLag(), totals_of({}), error)
            for broker_id, addr, error in ((0, "10.0.0.1:1", None), (1, "10.0.0.2:1", "refused"))
        ],
        topics=[TopicRow(name, "user", "", "RW", 8, 8, 1, 0, 0) for name in topics],
        groups=[GroupRow(name, "user", 1_200, None, 0.0, 1, "") for name in groups],
    )


def names(found: list[Hits]) -> dict[str, list[str]]:
    return {one.title: [hit.name for hit in one.shown] for one in found if one.title != "Messages"}


def test_the_same_name_comes_first_then_names_that_begin_with_it() -> None:
    found = search(snapshot("a-Orders", "orders-eu", "orders", "mails", groups=("orders-all",)), " ORDERS ")
    assert names(found) == {"Groups": ["orders-all"], "Topics": ["orders", "orders-eu", "a-Orders"]}


def test_a_broker_is_found_by_address_set_and_cluster() -> None:
    for text in ("10.0.0", "broker-a", "prod"):
        assert names(search(snapshot(), text)) == {"Brokers": ["10.0.0.1:1", "10.0.0.2:1"]}
    (hits, _) = search(snapshot(), "slave")
    assert [one.detail for one in hits.shown] == ["slave 1 of broker-a in prod, away"]


def test_hits_are_bounded_and_counted() -> None:
    (hits, _) = search(snapshot(*(f"topic-{number}" for number in range(MOST_OF_A_KIND + 7))), "topic")
    assert (len(hits.shown), hits.found) == (MOST_OF_A_KIND, MOST_OF_A_KIND + 7)


@pytest.mark.parametrize(
    ("text", "kinds"), [("0A" * 16, ["message", "trace", "key"]), ("order-17", ["key"]), ("0A" * 15, ["key"])]
)
def test_an_id_leads_to_its_message(text: str, kinds: list[str]) -> None:
    (messages,) = search(snapshot(), text)
    assert [one.kind for one in messages.shown] == kinds


@given(st.text())
def test_no_name_or_text_leads_off_the_console(text: str) -> None:
    for hits in search(snapshot(text, groups=(text,)), text):
        assert all(
            one.link.startswith("/") and not one.link.startswith(("//", "/\\")) and one.link.isascii()
            for one in hits.shown
        )
