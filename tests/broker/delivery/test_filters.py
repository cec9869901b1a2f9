"""Subscriptions as filters."""

import pytest

from skylark.broker.delivery import filters as module
from skylark.broker.delivery.filters import MAX_EXPRESSION, Filters
from skylark.broker.store.filter import ALL, Filter
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.javahash import java_hash


@pytest.mark.parametrize("expression", ["", "*", " * ", "  "])
def test_all_tags(expression: str) -> None:
    assert Filters().of(expression) is ALL


def test_some_tags() -> None:
    assert Filters().of("a || b||a||") == Filter(frozenset({java_hash("a"), java_hash("b")}))
    assert Filters().of("||") == Filter(frozenset())


def test_a_tag_that_is_named_often_is_hashed_once_and_an_expression_taken_apart_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed: list[str] = []
    monkeypatch.setattr(module, "java_hash", lambda tag: hashed.append(tag) or 7)
    filters = Filters()
    for _ in range(3):
        assert filters.of("a||" * 5_000) == Filter(frozenset({7}))
    assert hashed == ["a"]


def test_a_long_expression_is_refused_with_a_reason() -> None:
    with pytest.raises(RequestRefused, match="at most 32768") as caught:
        Filters().of("a" * (MAX_EXPRESSION + 1))
    assert caught.value.code == 23


def test_what_is_kept_is_bounded_whatever_peers_send() -> None:
    filters = Filters(cached_bytes=100_000)
    for number in range(200):
        filters.of(f"{number}" + "x" * 5_000)
    assert 50_000 < filters._cache.used_bytes <= 100_000
