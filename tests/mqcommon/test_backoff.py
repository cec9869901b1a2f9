from random import Random

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.backoff import Backoff

SECONDS = st.floats(0.001, 100)


@given(st.integers(), SECONDS, SECONDS, st.integers(0, 10**9))
def test_a_pause_is_half_to_all_of_what_doubling_gives(seed: int, first_s: float, more_s: float, failures: int) -> None:
    limit_s = first_s + more_s
    pause_s = Backoff(first_s, limit_s, Random(seed)).pause_s(failures)
    full = limit_s if failures > 60 else min(first_s * 2 ** max(failures - 1, 0), limit_s)
    assert full / 2 <= pause_s <= full


def test_clients_that_failed_together_come_back_apart() -> None:
    pauses = {Backoff(0.05, 0.5, Random(seed)).pause_s(5) for seed in range(100)}
    assert len(pauses) > 90
