"""Reading SQL92 expressions: RocketMQ's grammar, and mistakes with their place."""

import pytest

from skylark.mqcommon.errors import InvalidSql
from skylark.mqcommon.sql.nodes import Cast, Compare, Constant, Equal, In, Logic, Not, Property, Search
from skylark.mqcommon.sql.parser import MAX_CHAINED, MAX_CHARACTERS, MAX_DEPTH, MAX_TERMS, MAX_TEXTS, parse, terms_of

A, FIVE = Property("a"), Constant("int", 5)


@pytest.mark.parametrize(
    ("sql", "node"),
    [
        ("a = 5", Equal(A, FIVE)),
        ("a<>5", Not(Equal(A, FIVE))),
        ("a is null", Equal(A, Constant("null", None))),
        ("a IS NOT NULL", Not(Equal(A, Constant("null", None)))),
        ("a", Cast(A)),
        ("NOT a = 5", Equal(Not(Cast(A)), FIVE)),
        ("NOT (a = 5)", Not(Equal(A, FIVE))),
        ("a = 5 OR a = 5 AND a", Logic(False, (Equal(A, FIVE), Logic(True, (Equal(A, FIVE), Cast(A)))))),
        ("a BETWEEN 5 AND 5 ", Logic(True, (Compare(">=", A, FIVE), Compare("<=", A, FIVE)))),
        ("a NOT BETWEEN 5 AND 5", Logic(False, (Compare("<", A, FIVE), Compare(">", A, FIVE)))),
        ("a IN ('x', 'it''s')", In(A, ("x", "it's"), False)),
        ("a NOT IN ('x')", In(A, ("x",), True)),
        ("a CONTAINS 'x'", Search("CONTAINS", A, "x", False)),
        ("a NOT STARTSWITH 'x'", Search("STARTSWITH", A, "x", True)),
        ("a > -5", Compare(">", A, Constant("int", -5, False))),
        ("a > - + - 5", Compare(">", A, Constant("int", 5, False))),
        ("a > -'x'", Compare(">", A, Constant("null", None, False))),
        ("a > 2147483648", Compare(">", A, Constant("long", 2147483648))),
        ("a > 5L", Compare(">", A, FIVE)),
        ("a > 1.5e1", Compare(">", A, Constant("double", 15.0))),
        ("a > .5", Compare(">", A, Constant("double", 0.5))),
        ("a > 5. ", Compare(">", A, Constant("double", 5.0))),
        ("a > 0.0", Compare(">", A, Constant("double", 0.0))),
        ("a -- the first\n = /* or * not */ 5", Equal(A, FIVE)),
        ("_a$1 = TRUE", Equal(Property("_a$1"), Constant("boolean", True))),
    ],
)
def test_expressions(sql: str, node: object) -> None:
    assert parse(sql) == node


@pytest.mark.parametrize(
    ("sql", "at", "reason"),
    [
        ("", 0, "empty"),
        ("   ", 3, "empty"),
        ("a >", 3, "the expression ends where a property"),
        ("a > 'x'", 2, "only numbers and properties"),
        ("a > TRUE", 2, "only numbers and properties"),
        ("a > 5 > 3", 6, "only numbers and properties"),
        ("a like 'x%'", 2, "no LIKE in RocketMQ's SQL92: use STARTSWITH"),
        ("b = 1 AND a NOT LIKE 'x%'", 16, "no LIKE in RocketMQ's SQL92: use STARTSWITH"),
        ("a = 1 b", 6, "'b' stands where AND, OR"),
        ("a = 'x", 4, "no closing quote"),
        ("a /* b", 2, "no end"),
        ('a = "x"', 4, "single quotes"),
        ("a != 3", 2, "written <>"),
        ("a # 3", 2, "'#' is not allowed"),
        ("a BETWEEN 5 AND 3", 2, "5 is greater than 3"),
        ("a BETWEEN 5.5 AND 5", 2, "5.5 is greater than 5"),
        ("a = NULL", 2, "IS NULL"),
        ("TRUE = 5", 5, "TRUE and FALSE"),
        ("a IN (1)", 6, "'1' stands where a text"),
        ("a IN ()", 6, "stands where a text"),
        ("5 IN ('x')", 2, "IN needs a property"),
        ("(a", 2, "the expression ends where ')'"),
        ("a IS 5", 5, "where 'NULL'"),
        ("9223372036854775808 < a", 0, "too large"),
        ("1e999 < a", 0, "too large"),
        ("1e-999 < a", 0, "too small"),
        ("5", 0, "a condition is needed"),
        ("a AND 5", 0, "a condition is needed"),
        ("a AND -a", 0, "a condition is needed"),
        ("NOT 'x'", 0, "a condition is needed"),
        ("a = 5 AND", 9, "the expression ends"),
    ],
)
def test_mistakes_are_told_with_their_place(sql: str, at: int, reason: str) -> None:
    with pytest.raises(InvalidSql) as caught:
        parse(sql)
    assert caught.value.at == at
    assert reason in caught.value.reason
    assert f"character {at + 1}: " in str(caught.value)


def test_what_one_expression_may_cost_is_limited() -> None:
    assert terms_of(parse(" AND ".join(["a > 5"] * MAX_TERMS))) == MAX_TERMS
    with pytest.raises(InvalidSql, match=f"at most {MAX_TERMS} comparisons"):
        parse(" AND ".join(["a > 5"] * (MAX_TERMS + 1)))
    parse("(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH)
    with pytest.raises(InvalidSql, match=f"at most {MAX_DEPTH} parentheses"):
        parse("(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1))
    with pytest.raises(InvalidSql, match="parentheses and signs"):
        parse("NOT " * 4_000 + "a")
    parse("a" + " = TRUE" * (MAX_CHAINED + 1))
    for more in (" = TRUE", " IS NULL", " <> FALSE"):
        with pytest.raises(InvalidSql, match=f"at most {MAX_CHAINED} comparisons may compare"):
            parse("a" + more * (MAX_CHAINED + 2))
    texts = ",".join(["'x'"] * (MAX_TEXTS + 1))
    with pytest.raises(InvalidSql, match=f"more than {MAX_TEXTS} texts"):
        parse(f"a IN ({texts})")
    with pytest.raises(InvalidSql, match=f"at most {MAX_CHARACTERS}"):
        parse(f"a = '{'x' * MAX_CHARACTERS}'")


def test_the_number_of_comparisons_counts() -> None:
    assert terms_of(parse("a > 5 AND b = 'x' AND NOT (c < 100 OR d)")) == 4
