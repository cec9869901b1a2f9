"""How the delay levels are written, and what a level means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.options import BrokerOptions
from skylark.broker.store.queue.delay_levels import DEFAULT, DelayLevels, level_in
from skylark.mqcommon.errors import ConfigError


def test_rocketmqs_levels() -> None:
    assert DEFAULT.highest == 18
    assert [DEFAULT.delay_ms(level) for level in (1, 5, 17, 18, 99)] == [1_000, 60_000, 3_600_000, 7_200_000, 7_200_000]
    assert DelayLevels.parse(" 2d  3s ").delays_ms == (2 * 86_400_000, 3_000)


@pytest.mark.parametrize("text", ["", " ", "1", "s", "-1s", "1s,2s", "1S", "1.5s", "٣s", "9999999d", "1s " * 129])
def test_what_is_no_list_of_delays_is_an_error_in_the_conf(text: str) -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel: "):
        BrokerOptions(broker_name="a", message_delay_level=text)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=20), st.integers(0, 120_000))
def test_the_level_for_a_delay_is_the_shortest_that_is_long_enough(seconds: list[int], delay_ms: int) -> None:
    levels = DelayLevels.parse(" ".join(f"{each}s" for each in seconds))
    found = levels.delay_ms(levels.level_of(delay_ms))
    enough = [delay for delay in levels.delays_ms if delay >= delay_ms]
    assert found == (min(enough) if enough else max(levels.delays_ms))


def test_the_level_in_a_property() -> None:
    assert [level_in(value) for value in (None, b"", b"false", b"0", b"-3", b"7")] == [0, 0, 0, 0, 0, 7]
    with pytest.raises(ValueError, match="invalid literal"):
        level_in(b"x")
