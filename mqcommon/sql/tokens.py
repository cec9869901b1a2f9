"""The tokens of an SQL92 expression, as RocketMQ's SelectorParser reads them."""

import re
from typing import NamedTuple

from mqcommon.errors import InvalidSql

KEYWORDS = frozenset(
    ["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"]
)  # fmt: skip
# Kinds of tokens; a keyword's or an operator's kind is its own text.
NAME, TEXT, WHOLE, DECIMAL, END = "a property", "a text", "a whole number", "a number", "the end"

_TOKEN = re.compile(
    r"""
    (?P<skip>[ \t\n\r\f]+ | --[^\n\r]*(?:[\n\r]|$) | /\*.*?\*/)
  | (?P<decimal>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+)
  | (?P<whole>0 | [1-9][0-9]*[lL]?)
  | (?P<text>'(?:''|[^'])*')
  | (?P<word>[a-zA-Z_$][a-zA-Z0-9_$]*)
  | (?P<sign><> | <= | >= | [=<>(),+-])
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """``kind`` is one of the kinds above, or the keyword or sign itself; ``at`` is the place of its first character."""

    kind: str
    text: str
    at: int


def tokens_of(sql: str) -> list[Token]:
    """All tokens, with one of kind END after the last one. Raises InvalidSql."""
    found: list[Token] = []
    at = 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        if match is None:
            raise InvalidSql(sql, at, _reason(sql, at))
        text = match[0]
        match match.lastgroup:
            case "word":
                upper = text.upper()
                found.append(Token(upper if upper in KEYWORDS else NAME, text, at))
            case "text":
                found.append(Token(TEXT, text[1:-1].replace("''", "'"), at))
            case "whole":
                found.append(Token(WHOLE, text, at))
            case "decimal":
                found.append(Token(DECIMAL, text, at))
            case "sign":
                found.append(Token(text, text, at))
        at = match.end()
    found.append(Token(END, "", len(sql)))
    return found


def _reason(sql: str, at: int) -> str:
    sign = sql[at]
    if sign == "'":
        return "this text has no closing quote (')"
    if sql.startswith("/*", at):
        return "this comment has no end (*/)"
    if sign == '"':
        return "texts stand in single quotes (')"
    if sql.startswith("!=", at):
        return "unequal is written <>"
    return f"{sign!r} is not allowed here"
