"""Large objects in pieces: together with the rest they are what the whole was."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.remoting.protocol.requests import registrations
from skylark.remoting.protocol.requests.registrations import PIECE_BYTES, Piece, split_objects

TEXTS = st.text(st.sampled_from('ab"\\{}[],: \n\x00é'), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=5)
WRAPPERS = st.fixed_dictionaries({}, optional={"table": OBJECTS | VALUES, "unused": OBJECTS, "w": VALUES, "x": VALUES})
BODIES = st.fixed_dictionaries({}, optional={"w": WRAPPERS | VALUES, "table": OBJECTS, "y": VALUES, '"w': WRAPPERS})


def taken_apart(data: bytes) -> tuple[Any, dict[str, Any], list[Piece]]:
    """(what the rest is, what the pieces are together, the pieces)."""
    steps, pieces = split_objects(data, "w", ("table", "unused")), []
    while True:
        try:
            piece = next(steps)
        except StopIteration as end:
            found: dict[str, Any] = {}
            for each in pieces:
                found.setdefault(each.name, {}).update(orjson.loads(each.data))
            return orjson.loads(end.value), found, pieces
        if piece is not None:
            pieces.append(piece)


@given(BODIES, st.sampled_from([1, 10, PIECE_BYTES]), st.sampled_from([None, 2]))
def test_pieces_and_rest_are_the_whole(body: dict[str, Any], piece_bytes: int, indent: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registrations, "PIECE_BYTES", piece_bytes)
        rest, found, pieces = taken_apart(json.dumps(body, indent=indent, ensure_ascii=False).encode())
    for name, members in found.items():
        assert rest["w"][name] == {}
        rest["w"][name] = members
    assert rest == body
    wrapper = body.get("w")
    if type(wrapper) is dict:
        assert {name for name in ("table", "unused") if type(wrapper.get(name)) is dict} == found.keys()
    if piece_bytes == 1:
        for each in pieces:
            assert sum(type(value) in (dict, list) for value in orjson.loads(each.data).values()) <= 1


def test_pieces_are_small() -> None:
    table = {f"t{number}": {"topicName": f"t{number}"} for number in range(20_000)}
    data = orjson.dumps({"w": {"table": table}})
    rest, found, pieces = taken_apart(data)
    assert rest == {"w": {"table": {}}}
    assert found == {"table": table}
    assert max(len(each.data) for each in pieces) < PIECE_BYTES + 100


@pytest.mark.parametrize("data", [b"{", b'{"w":{"table":{"a":{}}}', b"}", b'{"a":"', b'{"a":1}}', b'{"a":"\\"}'])
def test_brackets_that_do_not_match_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        taken_apart(data)


@pytest.mark.parametrize("text", ["[{}]", '"x"'])
def test_what_is_too_long_to_be_read_at_once_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "MAX_MEMBER_BYTES", 100)
    monkeypatch.setattr(registrations, "PIECE_BYTES", 10)
    value = f"[{','.join([text] * 100)}]"
    with pytest.raises(ProtocolError, match="more than 100 bytes"):
        taken_apart(f'{{"w":{{"table":{{"t":{value}}}}}}}'.encode())


def test_many_brackets_are_looked_at_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "STEP_BRACKETS", 100)
    steps = split_objects(b'{"a":[' + b",".join([b"{}"] * 500) + b"]}", "w", ("table",))
    assert list(steps) == [None] * 10
