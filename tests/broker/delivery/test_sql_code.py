"""The generated code against a plain interpreter of RocketMQ's rules."""

import warnings
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.delivery.sql_code import compiled
from skylark.mqcommon.errors import InvalidSql
from skylark.mqcommon.message.properties import encode_properties
from skylark.mqcommon.sql.parser import MAX_CHAINED, parse
from tests.broker.delivery.sql_interpreter import matches

NAMES = st.sampled_from(["a", "b", "c", "ab"])
TEXTS = st.sampled_from(
    [
        *("x", "y", "xy", "5", "-5", "+5", "05", "5.0", "5.5", "1e1", "2147483648", "99999999999999999999", "true"),
        *("TRUE", "false", "NaN", "-Infinity", "-0.0", "0", " 5 ", "5f", "1_0", "", "ä"),
    ]
)
NUMBERS = st.sampled_from(["5", "0", "-5", "7", "2147483648", "-2147483648", "5.5", "0.0", "-0.0", "10L", "1e1"])


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _conditions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operand = st.one_of(NAMES, NUMBERS, TEXTS.map(_text), st.sampled_from(["TRUE", "FALSE"]), inner.map("({})".format))
    number = st.one_of(NAMES, NUMBERS, st.just("-a"))
    is_not = st.sampled_from(["", "NOT "])
    return st.one_of(
        st.builds("{} {} {}".format, operand, st.sampled_from(["=", "<>"]), operand),
        st.builds("{} {} {}".format, number, st.sampled_from(["<", "<=", ">", ">="]), number),
        st.builds("{} IS {}NULL".format, operand, is_not),
        st.builds("{} {}BETWEEN {} AND {}".format, number, is_not, number, number),
        st.builds("{} {}IN ({}, {})".format, NAMES, is_not, TEXTS.map(_text), TEXTS.map(_text)),
        st.builds(
            "{} {}{} {}".format,
            operand,
            is_not,
            st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]),
            TEXTS.map(_text),
        ),
        st.builds("{} {} {}".format, inner, st.sampled_from(["AND", "OR"]), inner),
        st.builds("({}) {} {} {} {}".format, inner, st.just("OR"), inner, st.just("AND"), inner),
        st.builds("NOT ({})".format, inner),
    )


SQL = st.recursive(NAMES, _conditions, max_leaves=12)


@given(SQL, st.lists(st.dictionaries(NAMES, TEXTS), min_size=1, max_size=6))
def test_messages_match_as_rocketmqs_rules_say(sql: str, messages: list[dict[str, str]]) -> None:
    try:
        node = parse(sql)
    except InvalidSql:
        return
    function = compiled(node)
    for properties in messages:
        raw = f"\x02{encode_properties(properties)}\x02".encode()
        assert function(raw) is matches(node, properties), (sql, properties)


OPERANDS = ("a", "b", "5", "10L", "5.5", "'x'", "'5'", "TRUE", "NULL", "(a = b)", "-a")
VALUES: list[dict[str, str]] = [
    {}, {"a": "5"}, {"a": "+5", "b": "5.0"}, {"a": "x", "b": "x"}, {"a": "99999999999999999999", "b": "TRUE"},
    {"a": "5.5", "b": "NaN"}, {"a": " 5 ", "b": "5f"},
]  # fmt: skip


@pytest.mark.parametrize("sign", ["=", "<>", "<", "<=", ">", ">="])
def test_operands_of_all_kinds_are_compared(sign: str) -> None:
    understood = 0
    for left, right in product(OPERANDS, OPERANDS):
        sql = f"{left} {sign} {right}"
        try:
            node = parse(sql)
        except InvalidSql:
            continue
        understood += 1
        function = compiled(node)
        for properties in VALUES:
            assert function(f"\x02{encode_properties(properties)}\x02".encode()) is matches(node, properties), sql
    assert understood > 30


@pytest.mark.parametrize(
    ("sql", "raw", "found"),
    [
        ("a = 'x'", b"a\x01x", True),  # the last end may be missing
        ("a = 'x'", b"ba\x01x\x02", False),
        ("a = 'x'", b"a\x01xx\x02", False),
        ("a = 'x'", b"b\x01a\x01x\x02", False),
        ("a = 'x'", b"a\x01x\x02a\x01y\x02", False),  # of two values the last one counts
        ("a = 'x'", b"a\x01y\x02a\x01x\x02", True),
        ("a = 'x' OR a = 'y'", b"a\x01x\x02a\x01y\x02", True),
        ("a = ''", b"a\x01\x02", False),
        ("a IS NULL", b"a\x01\x02", True),
        ("a IS NULL", b"", True),
        ("a = 'it''s \\ \"'", b"a\x01it's \\ \"\x02", True),
        ("a > 5", b"a\x01" + b"9" * 5_000, False),
        ("a > 5.5", b"a\x01" + b"9" * 5_000, False),
        ("a > 5.5", b"a\x010x1p3\x02", True),
        ("a < 5.5 OR b = 'x'", b"a\x01no number\x02b\x01x\x02", False),  # RocketMQ drops the message
        ("b = 'x' OR a < 5.5", b"a\x01no number\x02b\x01x\x02", True),
        ("a = 'x'", b"\xff\xfe\x02a\x01x\x02", True),
    ],
)
def test_stored_properties(sql: str, raw: bytes, found: bool) -> None:
    assert compiled(parse(sql))(b"\x02%b\x02" % raw) is found


def test_the_largest_expressions_can_be_compiled() -> None:
    chain = " OR ".join(f"NOT (a{number} = 'x' AND b > {number})" for number in range(100))
    assert compiled(parse(chain))(b"\x02a7\x01y\x02\x02")
    deep = "NOT (" * 10 + "(a = b) = (c = d)" + ")" * 10
    assert compiled(parse(deep))(b"\x02\x02")
    nested = "a"
    for _ in range(8):
        nested = f"NOT (b = 'x' OR c = 'y' AND ({nested} = TRUE))"
    assert compiled(parse("a" + " = TRUE" * (MAX_CHAINED + 1)))(b"\x02a\x01true\x02\x02") in (True, False)
    assert compiled(parse(nested))(b"\x02a\x01y\x02b\x01z\x02c\x01z\x02\x02") in (True, False)


@pytest.mark.parametrize(
    "sql", ["5 IS NULL", "'x' IS NOT NULL", "-a = 'x'", "5 = -a", "TRUE", "NULL", "5 CONTAINS 'x'"]
)
def test_odd_conditions_give_no_warnings_of_python(sql: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(parse(sql))(b"\x02\x02") is matches(parse(sql), {})
