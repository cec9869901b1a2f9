import contextlib
from typing import Any

import cbor2
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.dialect import Dialect, dialect_for, dumps, loads, parse_relaxed
from tests.remoting.protocol.golden import recorded

QUEUE = MessageQueue("T", "broker-a", 0)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
int64 = st.integers(-(2**63), 2**63 - 1)
queues = st.builds(MessageQueue, text, text, st.integers(-1, 100))
scalars = st.none() | st.booleans() | int64 | text | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(text, inner, max_size=4)
        | st.dictionaries(int64, inner, max_size=4)
        | st.dictionaries(queues, inner, max_size=3)
    ),
    max_leaves=15,
)


def test_number_keys() -> None:
    table = {"a": {0: "x", -1: "y"}}
    assert dumps(table, Dialect.FASTJSON) == b'{"a":{0:"x",-1:"y"}}'
    assert dumps(table, Dialect.STANDARD) == b'{"a":{"0":"x","-1":"y"}}'
    assert dumps(table, Dialect.CBOR) == cbor2.dumps(table)


@pytest.mark.parametrize("dialect", [Dialect.FASTJSON, Dialect.STANDARD])
def test_object_keys_have_one_form(dialect: Dialect) -> None:
    body = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:7}}'
    assert dumps({"offsetTable": {QUEUE: 7}}, dialect) == body
    assert loads(body) == {"offsetTable": {QUEUE: 7}}


def test_number_keys_beside_object_keys_are_quoted_when_standard() -> None:
    assert dumps({1: {QUEUE: [{2: 0}]}}, Dialect.STANDARD) == (
        b'{"1":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:[{"2":0}]}}'
    )


def test_object_keys_are_arrays_in_cbor() -> None:
    assert cbor2.loads(dumps({QUEUE: 1}, Dialect.CBOR)) == {("T", "broker-a", 0): 1}


@given(values)
def test_fastjson_form_comes_back(value: Any) -> None:
    assert loads(dumps(value, Dialect.FASTJSON)) == value


@given(values)
def test_the_relaxed_reader_agrees_with_the_standard_one(value: Any) -> None:
    standard = dumps(value, Dialect.STANDARD)
    with contextlib.suppress(orjson.JSONDecodeError):
        assert parse_relaxed(standard.decode()) == orjson.loads(standard)


@given(st.binary(max_size=60) | text.map(str.encode))
def test_random_bytes_give_a_value_or_that_one_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        loads(data)


@given(st.text("{}[],:\"\\0123456789.-+eE truefalsn\n\ud800\x00ab'", max_size=40))
def test_random_json_like_text(data: str) -> None:
    with contextlib.suppress(ProtocolError):
        parse_relaxed(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{0:1",
        b"{0:1}}",
        b"{0:}",
        b"{0 1}",
        b"{0:1,}",
        b"{,}",
        b"[1,{0:1},]",
        b"{0:01}",
        b"{0:NaN}",
        b"{0:Infinity}",
        b"{0.5:1}",
        b"{true:1}",
        b"{null:1}",
        b"{[1]:1}",
        b"{{}:1}",
        b'{{"topic":"t","brokerName":"b"}:1}',
        b'{{"topic":"t","brokerName":"b","queueId":4294967296}:1}',
        b'{{"topic":1,"brokerName":"b","queueId":0}:1}',
        b'{0:"\\ud800"}',
        b'{0:"\\x"}',
        b'{0:"a',
        b'{0:"a\nb"}',
        b"{0:'a'}",
        b"{0:\xff}",
        b"{" + b"9" * 5000 + b":1}",
        b"{0:" + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{" * 100_000,
        b"{0:" * 100_000,
    ],
)
def test_what_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        loads(data)


def test_only_standard_json_may_be_long() -> None:
    rows = b"[" + b",".join([b'{"a":1}'] * 300_000) + b"]"
    assert len(loads(rows)) == 300_000
    with pytest.raises(ProtocolError, match="too long"):
        loads(b"{0:" + rows + b"}")


def test_blanks_and_escapes_are_read() -> None:
    assert loads(b' { 0 : "\\u4e2d\\n" , "a" : [ { 1 : -2.5e1 } , true , null ] } \n') == {
        0: "中\n",
        "a": [{1: -25.0}, True, None],
    }


@pytest.mark.parametrize(
    ("request_", "dialect"),
    [
        (Command(105, version=401), Dialect.STANDARD),
        (Command(105, version=399), Dialect.FASTJSON),
        (Command(105, {"acceptStandardJsonOnly": "true"}, version=63), Dialect.STANDARD),
        (Command(105, {"acceptStandardJsonOnly": True}, version=63), Dialect.STANDARD),
        (Command(105, {"acceptStandardJsonOnly": "false"}, version=63), Dialect.FASTJSON),
        (Command(105, version=0, codec=CBOR), Dialect.CBOR),
    ],
)
def test_who_gets_which_dialect(request_: Command, dialect: Dialect) -> None:
    assert dialect_for(request_) is dialect


def test_mutated_recorded_bodies() -> None:
    bodies = [each.command.body for each in recorded("admin_5.3.3") if each.request_code in (43, 106, 208)]
    mutated = 0
    for body in filter(None, bodies):
        for place in range(0, len(body), 7):
            for byte in (0x00, 0x22, 0x2C, 0x7B, 0xFF):
                with contextlib.suppress(ProtocolError):
                    loads(body[:place] + bytes([byte]) + body[place + 1 :])
                mutated += 1
    assert mutated > 100
