from random import Random

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.backoff import FIRST_RESTART_PAUSE_S, LONGEST_RESTART_PAUSE_S, STABLE_S, Backoff, RestartPauses

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


def test_pauses_before_restarts_grow_until_a_run_was_long() -> None:
    pauses = RestartPauses(Random(1))
    grown_s = [pauses.next_s(ran_s=STABLE_S - 1) for _ in range(10)]
    assert FIRST_RESTART_PAUSE_S / 2 <= grown_s[0] <= FIRST_RESTART_PAUSE_S <= grown_s[1]
    assert LONGEST_RESTART_PAUSE_S / 2 <= grown_s[-1] <= LONGEST_RESTART_PAUSE_S
    assert pauses.next_s(ran_s=STABLE_S) <= FIRST_RESTART_PAUSE_S <= pauses.next_s(ran_s=0.0)
