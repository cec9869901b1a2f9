"""Which deliveries are renewed, and with which receipt a client's request is carried out."""

from typing import cast

import pytest

from skylark.mqcommon.errors import RequestTimeout
from skylark.mqproxy.brokers import Brokers
from skylark.mqproxy.deliveries import Receipt
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.renewals import RenewalCounts, Renewals
from skylark.mqproxy.statuses import Refused
from tests.support.clock import ManualClock

HIDDEN_MS = 60_000
OPTIONS = ProxyOptions(default_invisible_time_mills=HIDDEN_MS)


class Renewing:
    """Brokers that give each renewed message a handle of now."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.renewed: list[str] = []

    async def change_invisible_time(self, group: str, topic: str, receipt: Receipt, invisible_ms: int) -> Receipt:
        self.renewed.append(str(receipt))
        return receipt_at(self.clock)


def receipt_at(clock: ManualClock) -> Receipt:
    now_ms = clock.now_ms()
    return Receipt.parse(f"0 {now_ms} {HIDDEN_MS} 0 0 broker-a 0 7 7", now_ms)


def shown_ms(receipt: Receipt) -> int:
    """When the message is shown again."""
    return receipt.pop.pop_time + receipt.pop.invisible_time


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def brokers(clock: ManualClock) -> Renewing:
    return Renewing(clock)


@pytest.fixture
def renewals(brokers: Renewing, clock: ManualClock) -> Renewals:
    return Renewals(cast(Brokers, brokers), OPTIONS, clock, lambda client: True, RenewalCounts())


async def rounds(renewals: Renewals, clock: ManualClock, ms: int) -> None:
    """Let so much time pass, with a round every second."""
    for _ in range(ms // 1_000):
        clock.advance(1_000)
        await renewals.renew_due()


async def test_a_request_that_failed_is_made_again_with_the_same_handle(
    renewals: Renewals, brokers: Renewing, clock: ManualClock
) -> None:
    first = receipt_at(clock)
    renewals.add("client", "group", "topic", first)
    await rounds(renewals, clock, 3 * HIDDEN_MS)
    with pytest.raises(RequestTimeout):
        async with renewals.taken(str(first)) as taken:
            raise RequestTimeout("broker-a", 200_051, 1.0)
    await rounds(renewals, clock, HIDDEN_MS - 1_000)
    async with renewals.taken(str(first)) as again:
        assert shown_ms(again.receipt) > clock.now_ms() >= shown_ms(taken.receipt) - HIDDEN_MS
        again.is_settled = True
    assert len(renewals) == 0
    with pytest.raises(Refused, match="expired"):
        async with renewals.taken(str(first)):
            raise AssertionError("the message is acknowledged")


async def test_a_client_that_has_given_up_does_not_keep_a_message_hidden(
    renewals: Renewals, clock: ManualClock
) -> None:
    first = receipt_at(clock)
    renewals.add("client", "group", "topic", first)
    async with renewals.taken(str(first)):
        # Not settled: the broker has refused.
        clock.advance(1_000)
    await rounds(renewals, clock, HIDDEN_MS)
    assert len(renewals) == 0


async def test_a_failure_does_not_make_a_message_be_renewed_for_longer(renewals: Renewals, clock: ManualClock) -> None:
    first = receipt_at(clock)
    renewals.add("client", "group", "topic", first)
    await rounds(renewals, clock, OPTIONS.renew_max_time_millis - 1_000)
    async with renewals.taken(str(first)):
        pass
    await rounds(renewals, clock, 1_000)
    assert len(renewals) == 0


async def test_a_delivery_is_not_renewed_while_its_client_asks_for_it(
    renewals: Renewals, brokers: Renewing, clock: ManualClock
) -> None:
    first = receipt_at(clock)
    renewals.add("client", "group", "topic", first)
    async with renewals.taken(str(first)) as one, renewals.taken(str(first)) as other:
        await rounds(renewals, clock, HIDDEN_MS)
        one.is_settled = True
    assert (one.receipt, other.receipt, brokers.renewed, len(renewals)) == (first, first, [], 0)


@pytest.mark.parametrize("set_by_ms", [-3_600_000, 3_600_000])
async def test_a_clock_that_is_set_keeps_no_delivery_from_being_renewed(
    set_by_ms: int, renewals: Renewals, brokers: Renewing, clock: ManualClock
) -> None:
    renewals.add("client", "group", "topic", receipt_at(clock))
    clock.set_by(set_by_ms)
    await rounds(renewals, clock, 3 * HIDDEN_MS)
    assert 3 <= len(brokers.renewed) <= 6
    await rounds(renewals, clock, OPTIONS.renew_max_time_millis)
    assert len(renewals) == 0, "and not for ever"


def test_receipts_are_read_together_if_all_can_be_used_and_none_is_renewed(
    renewals: Renewals, clock: ManualClock
) -> None:
    now_ms = clock.now_ms()
    handles = [f"0 {now_ms} {HIDDEN_MS} 0 0 broker-a 0 {offset} {offset}" for offset in range(3)]
    found = renewals.receipts(handles)
    assert found is not None and list(map(str, found)) == handles
    assert renewals.receipts([*handles, "no handle"]) is None
    renewals.add("client", "group", "topic", found[1])
    assert renewals.receipts(handles) is None
    assert renewals.receipts(handles[:1]) == found[:1]
    clock.advance(HIDDEN_MS)
    assert renewals.receipts(handles[:1]) is None
