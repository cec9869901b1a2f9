"""A cache that peers cannot make larger than it may be."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.bounded_cache import ENTRY_BYTES, BoundedCache


def test_the_oldest_goes_when_there_is_no_room() -> None:
    cache: BoundedCache[str, int] = BoundedCache(3 * (ENTRY_BYTES + 10))
    for number, key in enumerate("abcd"):
        cache.put(key, number, 10)
    assert [cache.get(key) for key in "abcd"] == [None, 1, 2, 3]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2000)), max_size=60), st.integers(0, 5000))
def test_a_cache_never_holds_more_bytes_than_its_limit(puts: list[tuple[int, int]], most: int) -> None:
    cache: BoundedCache[int, int] = BoundedCache(most)
    sizes: dict[int, int] = {}
    for key, size in puts:
        if cache.get(key) is None:
            sizes[key] = size
        cache.put(key, key, size)
        kept = [key for key in sizes if cache.get(key) is not None]
        assert cache.used_bytes == sum(sizes[key] + ENTRY_BYTES for key in kept) <= most
        assert len(cache) == len(kept)
