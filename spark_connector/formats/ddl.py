"""Checks the fields of `valueSchema` in Spark's DDL, `id bigint, tags array<string>`, before Spark parses them.

Spark gets the fields within the schema of all columns. So its error for a misspelt type names a place in a text that
the user never wrote, and a type there that is right. Spark checks everything that passes here.
"""

import re

from skylark.mqcommon.errors import UserError

_TOKEN = re.compile(r"`(?:[^`]|``)+`|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|\w+|\S")
_SIMPLE = frozenset(
    (
        "bigint", "binary", "boolean", "byte", "date", "dec", "decimal", "double", "float", "int", "integer", "long",
        "numeric", "real", "short", "smallint", "string", "timestamp", "timestamp_ltz", "tinyint",
    )
)  # fmt: skip
_TYPES = "bigint, binary, boolean, date, decimal(p,s), double, float, int, string, timestamp, array<>, map<,>, struct<>"


def check_ddl(text: str) -> None:
    """Raise UserError when ``text`` is no list of fields, or a field has a type that values cannot have."""
    _Tokens(text).check()


class _Tokens:
    """The rest of the text, which is still to be read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found = list(_TOKEN.finditer(text))
        self._at = 0

    def check(self) -> None:
        if self._next == "struct" and self._text.rstrip().endswith(">"):
            self._type("value")
        else:
            self._fields("")
        if self._next:
            raise self._error(f"{self._next!r} is unexpected")

    @property
    def _next(self) -> str:
        return self._found[self._at].group().lower() if self._at < len(self._found) else ""

    def _skip(self, *wanted: str) -> bool:
        """Go past the next token if it is one of ``wanted``."""
        if self._next not in wanted:
            return False
        self._at += 1
        return True

    def _need(self, wanted: str) -> None:
        if not self._skip(wanted):
            raise self._error(f"{wanted!r} is missing")

    def _fields(self, path: str) -> None:
        while True:
            name = self._found[self._at].group().strip("`") if self._next else ""
            if not re.fullmatch(r"`.*`|\w+", self._next, re.DOTALL):
                raise self._error("the name of a field is missing")
            self._at += 1
            self._skip(":")
            self._type(f"{path}{name}")
            if self._skip("not"):
                self._need("null")
            if self._skip("comment"):
                self._at += 1
            if not self._skip(","):
                return

    def _type(self, path: str) -> None:
        kind = self._next
        if not re.fullmatch(r"\w+", kind):
            raise self._error(f"field {path} has no type")
        if kind not in (*_SIMPLE, "array", "map", "struct"):
            raise self._error(f"field {path}: values have no type {kind}, but {_TYPES}")
        self._at += 1
        if kind in ("array", "map", "struct"):
            self._need("<")
            if kind == "struct":
                self._fields(f"{path}.")
            else:
                self._type(path)
            if kind == "map":
                self._need(",")
                self._type(path)
            self._need(">")
        elif kind in ("dec", "decimal", "numeric") and self._skip("("):
            self._at += 1
            if self._skip(","):
                self._at += 1
            self._need(")")
        elif kind == "string" and self._skip("collate"):
            self._at += 1

    def _error(self, what: str) -> UserError:
        place = self._found[self._at].start() + 1 if self._at < len(self._found) else len(self._text) + 1
        return UserError(f"option valueSchema: {what} (character {place} of {self._text!r})")
