"""Where a queue starts after old files of the log are gone."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.queue.bounds_search import first_in_log


def counting(entries: list[int | None]) -> Callable[[int], int | None]:
    return lambda offset: entries[offset]


@given(st.lists(st.none() | st.integers(1, 50), max_size=60), st.integers(0, 900), st.data())
def test_the_first_entry_in_the_log(gaps: list[int | None], log_start: int, data: st.DataObject) -> None:
    physical, entries = 0, []
    for gap in gaps:
        physical += gap or 0
        entries.append(None if gap is None else physical)
    low = data.draw(st.integers(0, len(entries)))
    live = [n for n in range(low, len(entries)) if (entries[n] or -1) >= log_start]
    assert first_in_log(counting(entries), low, len(entries), log_start) == (live[0] if live else len(entries))
