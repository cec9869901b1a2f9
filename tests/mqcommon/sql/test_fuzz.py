"""Texts of the language's words in any order: an expression, or InvalidSql."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import InvalidSql
from skylark.mqcommon.sql.parser import parse

WORDS = (
    "a", "_a.b", "$", "AND", "OR", "NOT", "(", ")", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE", "CONTAINS", "LIKE",
    "STARTSWITH", "ENDSWITH", "=", "<>", "<=", ">", ",", "'x'", "'", '"', "\\", "\0", "é", "--", "%", "1", "-", "1.5",
    "1e999", "9" * 400, "0x",
)  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=60), st.sampled_from((" ", "")))
def test_words_in_any_order(words: list[str], between: str) -> None:
    with suppress(InvalidSql):
        parse(between.join(words))


@given(st.text())
def test_any_text(text: str) -> None:
    with suppress(InvalidSql):
        parse(text)
