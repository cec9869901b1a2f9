from collections.abc import Mapping

import pytest

from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqconsole.watching.pace import SHORTEST_S, WINDOW_S, Pace
from skylark.remoting.protocol.requests.groups import ConsumeOffset, ConsumeStats, ConsumeStatsList


def stats(offsets: Mapping[str, int]) -> ConsumeStatsList:
    tables = {
        group: [ConsumeStats(offset_table={MessageQueue("orders", "a", 0): ConsumeOffset(10_000, at)})]
        for group, at in offsets.items()
    }
    return ConsumeStatsList(consume_stats_list=[{group: every} for group, every in tables.items()])


def last_rate(*offsets: int, every_s: float = 5.0) -> float | None:
    pace, rates = Pace(), {"shop": -1.0}
    for number, at in enumerate(offsets):
        rates = pace.rates_after(100 + number * every_s, stats({"shop": at}))
    return rates.get("shop")


@pytest.mark.parametrize(
    ("offsets", "rate"),
    [
        ((0, 50, 100, 150), None),
        ((0, 50, 100, 150, 200), 10.0),
        # Offsets that are committed every other time give a steady rate.
        ((0, 0, 100, 100, 200), 10.0),
        # A reset to the beginning is no negative rate; what is consumed after it counts.
        ((100, 150, 0, 50, 100), 7.5),
        # A first commit is where the group begins.
        ((-1, -1, 5_000, 5_000, 5_100), 5.0),
        ((7, 7, 7, 7, 7), 0.0),
    ],
)
def test_a_rate_is_how_far_offsets_moved(offsets: tuple[int, ...], rate: float | None) -> None:
    assert last_rate(*offsets) == rate


def test_a_rate_is_that_of_the_last_minute() -> None:
    fast, slow = [n * 100 for n in range(13)], [1_200 + n * 5 for n in range(1, 16)]
    assert last_rate(*fast, *slow) == pytest.approx(1.0)
    assert WINDOW_S > SHORTEST_S


def test_a_group_that_is_new_has_no_rate_yet() -> None:
    pace = Pace()
    pace.rates_after(0, stats({"shop": 0}))
    assert pace.rates_after(30, stats({"shop": 30, "new": 900})) == {"shop": 1.0}
    assert pace.rates_after(50, stats({"shop": 50, "new": 960})) == {"shop": 1.0, "new": 3.0}
