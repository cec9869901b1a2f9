"""Tables, JSON, times and Java's spellings."""

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqadmin.render import (
    Table,
    java_object,
    java_value,
    seconds_text,
    time_text,
    to_json,
)

# --- Tables, JSON, times and Java's spellings


class Row(NamedTuple):
    name: str
    count: int


TABLE = Table((("#Name", "name"), ("#Count", "count")), "%-6s  %4d|")


def test_heads_in_the_widths_of_the_rows() -> None:
    assert list(TABLE.lines([Row("a", 7)])) == ["#Name   #Count|", "a          7|"]


def test_heads_in_widths_of_their_own() -> None:
    assert Table(TABLE.columns, "%-6s  %4d|", "%-8s %s").head() == "#Name    #Count"


def test_wide_names_are_not_cut() -> None:
    assert TABLE.row(Row("a-wide-name", 1)) == "a-wide-name     1|"


def test_times() -> None:
    assert time_text(1795229975054).endswith(",054")
    assert [time_text(0), time_text(-1)] == ["", ""]


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_number_is_shown_as_a_time(timestamp_ms: int) -> None:
    assert time_text(timestamp_ms) is not None
    assert seconds_text(timestamp_ms)


def test_java_values() -> None:
    value = {"a": None, "b": True, "c": [1, False], "d": {"e": 1.5}}
    assert java_value(value) == "{a=null, b=true, c=[1, false], d={e=1.5}}"
    assert java_object("A", {"x": 1, "y": "z"}) == "A [x=1, y=z]"
    assert java_object("A", {}, "{}") == "A{}"


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(documents)
def test_both_kinds_of_json_say_the_same(document: Any) -> None:
    assert json.loads(to_json(document)) == document
    assert json.loads(to_json(document, one_line=True)) == document
    assert "\n" not in to_json(document, one_line=True)


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError):
        to_json(float("nan"))
