"""Reads SQL92 expressions with the grammar of RocketMQ's SelectorParser.

NOT binds more tightly than any comparison, so ``NOT a = 5`` is ``(NOT a) = 5``; write ``NOT (a = 5)``. Unlike
RocketMQ's parser this one refuses text after the end of an expression, which is a mistake, and allows 0.0.
"""

import re
from collections.abc import Callable
from functools import partial
from math import isinf
from typing import NamedTuple

from skylark.mqcommon.errors import InvalidSql
from skylark.mqcommon.sql import nodes
from skylark.mqcommon.sql.nodes import Constant, Misfit, Node, Property

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


MAX_CHARACTERS = 16_384
# Comparisons, searches and tests in one expression. Each costs some time for every message.
MAX_TERMS = 256
MAX_DEPTH = 24
# Comparisons of results of comparisons, as in a = TRUE = TRUE = FALSE: each is one level deeper, without a parenthesis.
MAX_CHAINED = 24
MAX_TEXTS = 1_024

# RocketMQ's parser stops before LIKE without an error: of a LIKE 'x%' it takes "a", which no message matches.
_NO_LIKE = "there is no LIKE in RocketMQ's SQL92: use STARTSWITH 'a', ENDSWITH 'a' or CONTAINS 'a'"
_SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")


def parse(sql: str) -> Node:
    """The expression as a condition. Raises InvalidSql, with the place of the mistake."""
    if len(sql) > MAX_CHARACTERS:
        raise InvalidSql(sql, MAX_CHARACTERS, f"it has {len(sql)} characters, at most {MAX_CHARACTERS} are allowed")
    return _Parser(sql).whole()


def terms_of(node: Node) -> int:
    """How often, at most, the condition reads a property of a message: this is what checking a message costs."""
    match node:
        case nodes.Logic():
            return sum(map(terms_of, node.parts))
        case nodes.Cast() | nodes.Not() | nodes.In() | nodes.Search():
            return terms_of(node.of)
        case nodes.Equal() | nodes.Compare():
            return terms_of(node.left) + terms_of(node.right)
        case nodes.Property():
            return 1
    return 0


class _Parser:
    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._tokens = tokens_of(sql)
        self._next = 0
        self._depth = self._terms = self._texts = self._chained = 0

    def whole(self) -> Node:
        if self._now.kind is END:
            raise self._error("the expression is empty")
        start = self._now
        node = self._either()
        if self._now.kind is not END:
            raise self._unexpected("AND, OR, a comparison or the end")
        return self._made(start, partial(nodes.condition, node))

    # --- the levels of the grammar, the loosest first

    def _either(self) -> Node:
        return self._joined("OR", self._all)

    def _all(self) -> Node:
        return self._joined("AND", self._equality)

    def _joined(self, word: str, level: Callable[[], Node]) -> Node:
        # One node for a whole chain: otherwise a OR b OR c ... would be as deep as it is long.
        start, parts = self._now, [level()]
        while self._take(word):
            parts.append(level())
        if len(parts) == 1:
            return parts[0]
        return self._made(start, partial(nodes.logic, word == "AND", parts))

    def _equality(self) -> Node:
        # Comparisons bind tighter, as in RocketMQ's grammar: a = b > c means a = (b > c).
        left, is_first = self._comparison(), True
        while (sign := self._now).kind in ("=", "<>", "IS"):
            self._advance()
            self._count()
            self._chain(is_first)
            is_first = False
            if sign.kind == "IS":
                is_not = self._take("NOT")
                self._expect("NULL")
                node: Node = nodes.Equal(left, Constant(nodes.NULL, None))
            else:
                is_not = sign.kind == "<>"
                node = self._made(sign, partial(nodes.equal, left, self._comparison()))
            left = nodes.Not(node) if is_not else node
        return left

    def _comparison(self) -> Node:
        left, is_first = self._signed(), True
        while True:
            sign = self._now
            if sign.kind in ("<", "<=", ">", ">="):
                self._advance()
                left = self._made(sign, partial(nodes.compare, sign.kind, left, self._signed()))
            elif sign.kind in ("BETWEEN", "IN", *_SEARCHES):
                left = self._test(left, sign, False)
            elif sign.kind == "NOT" and self._tokens[self._next + 1].kind in ("BETWEEN", "IN", *_SEARCHES):
                self._advance()
                left = self._test(left, sign, True)
            else:
                return left
            self._count()
            self._chain(is_first)
            is_first = False

    def _test(self, left: Node, start: Token, is_not: bool) -> Node:
        word = self._advance().kind
        if word == "BETWEEN":
            low = self._signed()
            self._expect("AND")
            self._count()
            return self._made(start, partial(nodes.between, left, low, self._signed(), is_not))
        if word == "IN":
            return self._made(start, partial(nodes.is_in, left, self._list(), is_not))
        return nodes.Search(word, left, self._expect(TEXT).text, is_not)

    def _list(self) -> list[str]:
        self._expect("(")
        texts = [self._expect(TEXT).text]
        while self._take(","):
            texts.append(self._expect(TEXT).text)
        # The limit is of all lists together: many small lists cost as much as a large one.
        self._texts += len(texts)
        if self._texts > MAX_TEXTS:
            raise self._error(f"more than {MAX_TEXTS} texts stand in IN (...)")
        self._expect(")")
        return texts

    def _signed(self) -> Node:
        start = self._now
        if start.kind not in ("+", "-", "NOT"):
            return self._primary()
        self._enter()
        self._advance()
        node = self._signed()
        self._depth -= 1
        if start.kind == "+":
            return node
        if start.kind == "-":
            return nodes.negated(node)
        return nodes.Not(self._made(start, partial(nodes.condition, node)))

    def _primary(self) -> Node:
        token = self._now
        match token.kind:
            case "(":
                self._enter()
                self._advance()
                node = self._either()
                self._expect(")")
                self._depth -= 1
                return node
            case _ if token.kind is NAME:
                node = Property(token.text)
                self._count()
            case _ if token.kind is TEXT:
                node = Constant(nodes.STRING, token.text)
            case _ if token.kind is WHOLE:
                node = self._whole_number(token)
            case _ if token.kind is DECIMAL:
                node = self._decimal(token)
            case "TRUE" | "FALSE":
                node = Constant(nodes.BOOLEAN, token.kind == "TRUE")
            case "NULL":
                node = Constant(nodes.NULL, None)
            case _:
                raise self._unexpected("a property, a number, a text or '('")
        self._advance()
        return node

    def _whole_number(self, token: Token) -> Constant:
        # The length first: Python takes long for a number of thousands of digits, or refuses it.
        digits = token.text.rstrip("lL")
        if len(digits) > len(str(nodes.LONG_MAX)) or int(digits) > nodes.LONG_MAX:
            raise self._error(f"the number is too large, at most {nodes.LONG_MAX} is allowed")
        value = int(digits)
        return Constant(nodes.INT if value <= nodes.INT_MAX else nodes.LONG, value)

    def _decimal(self, token: Token) -> Constant:
        value = float(token.text)
        if isinf(value):
            raise self._error("the number is too large")
        # Java's numbers have the same smallest value; a 0 in its place would match other messages.
        if value == 0 and token.text.lower().partition("e")[0].strip("0."):
            raise self._error("the number is too small")
        return Constant(nodes.DOUBLE, value)

    # --- tokens, limits and errors

    @property
    def _now(self) -> Token:
        return self._tokens[self._next]

    def _advance(self) -> Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _take(self, kind: str) -> bool:
        if self._now.kind != kind:
            return False
        self._next += 1
        return True

    def _expect(self, kind: str) -> Token:
        if self._now.kind != kind:
            raise self._unexpected(kind if kind is TEXT else repr(kind))
        return self._advance()

    def _count(self) -> None:
        self._terms += 1
        if self._terms > 2 * MAX_TERMS:
            raise self._error(f"the expression is too long: at most {MAX_TERMS} comparisons are allowed")

    def _chain(self, is_first: bool) -> None:
        self._chained += not is_first
        if self._chained > MAX_CHAINED:
            reason = f"at most {MAX_CHAINED} comparisons may compare what another one says, as in a = TRUE = TRUE"
            raise self._error(reason)

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"at most {MAX_DEPTH} parentheses and signs may stand within each other")

    def _made(self, at: Token, make: Callable[[], Node]) -> Node:
        try:
            return make()
        except Misfit as misfit:
            raise InvalidSql(self._sql, at.at, str(misfit)) from None

    def _unexpected(self, wanted: str) -> InvalidSql:
        token = self._now
        for each in self._tokens[self._next : self._next + 2]:
            if each.kind is NAME and each.text.upper() == "LIKE":
                return InvalidSql(self._sql, each.at, _NO_LIKE)
        got = "the expression ends" if token.kind is END else f"{token.text!r} stands"
        return self._error(f"{got} where {wanted} is expected")

    def _error(self, reason: str) -> InvalidSql:
        return InvalidSql(self._sql, self._now.at, reason)
