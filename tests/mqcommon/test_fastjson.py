"""fastjson's pretty form, as RocketMQ's files and its tool have it."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.fastjson import pretty


def test_nothing_stands_between_empty_brackets() -> None:
    assert pretty({"a": {}, "b": [], "c": "é"}) == '{\n\t"a":{},\n\t"b":[],\n\t"c":"é"\n}'


def test_a_map_with_number_keys_stands_on_one_line() -> None:
    assert pretty({"T@g": {0: 13, 2: 7}}) == '{\n\t"T@g":{0:13,2:7\n\t}\n}'


def test_a_set_stands_on_one_line_and_a_list_does_not() -> None:
    assert pretty({"g": {"b": None, "a": None}.keys()}) == '{\n\t"g":["b","a"]\n}'
    assert pretty({"g": ["b", "a"]}) == '{\n\t"g":[\n\t\t"b",\n\t\t"a"\n\t]\n}'


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(documents)
def test_without_number_keys_it_is_json(document: Any) -> None:
    assert json.loads(pretty(document)) == document
