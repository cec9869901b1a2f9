"""A log record as one line: of text, or of JSON. Texts of peers cannot make a second line, nor control a terminal.

Records name their values in the format of the message: ``"torn tail cut: file=%s offset=%d"``. In JSON these are
fields of their own, as is what a call gives as ``extra``.
"""

import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from skylark.mqcommon.visible import UNSAFE, escape

# A message is cut to this length, whatever text of a peer it shows; each field, too.
MAX_MESSAGE_CHARS = 2_000
# A traceback is cut to this length, from the end, which says what happened.
MAX_TRACEBACK_CHARS = 50_000
TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s - %(message)s"

_DIRECTIVE = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?%(?:\((?P<key>[^)]*)\))?[-+ #0]*\d*(?:\.\d+)?(?P<kind>[a-zA-Z%])")
_UNSAFE = re.compile(rf"[\n{UNSAFE}]")
_ESCAPES = {"\n": "\\n", "\r": "\\r"}
# The attributes of every record; all others were given as ``extra``.
_OWN = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName", "fields"}
_PLAIN = (int, float, bool, type(None))


class LineFormatter(logging.Formatter):
    """Keeps a message on one line of bounded length; a traceback follows in lines that begin with blanks."""

    def __init__(self, fmt: str = TEXT_FORMAT) -> None:
        super().__init__(fmt)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        lines = _traceback(super().formatException(ei)).split("\n")
        return "\n".join(f"    {_visible(line)}" for line in lines)


class JsonFormatter(logging.Formatter):
    """One object a line; a traceback is a text in it."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        document: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": _shortened(record.getMessage()),
        }
        fields = getattr(record, "fields", None)
        if fields is None:
            fields = fields_of(record)
        if fields:
            document["fields"] = fields
        if record.exc_info:
            document["exception"] = _traceback(self.formatException(record.exc_info))
        return json.dumps(document, ensure_ascii=True)


def one_line(message: str) -> str:
    """``message``, cut to MAX_MESSAGE_CHARS, without line ends and control characters."""
    return _visible(_shortened(message))


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The values of a record that its message names (``offset=%d``), and what the call gave as ``extra``."""
    fields = {name: _value(value) for name, value in vars(record).items() if name not in _OWN}
    args = record.args
    if not args or not isinstance(record.msg, str):
        return fields
    names = _names(record.msg)
    if isinstance(args, Mapping):
        return fields | {name: _value(args[name]) for name in names if name in args}
    return fields | {name: _value(value) for name, value in zip(names, args, strict=False) if name}


def _visible(text: str) -> str:
    return _UNSAFE.sub(lambda match: _ESCAPES.get(match[0]) or escape(match[0]), text)


@lru_cache(maxsize=1_024)
def _names(message: str) -> tuple[str, ...]:
    """The name of each argument of a format, or "": a key of a mapping, or the word before ``=``."""
    # "%%" takes no argument, so it must not count among the places of the arguments.
    found = [match for match in _DIRECTIVE.finditer(message) if match["kind"] != "%"]
    return tuple(match["key"] or match["name"] or "" for match in found)


def _value(value: object) -> Any:
    if isinstance(value, float) and not -1e300 < value < 1e300:
        return str(value)  # JSON has no NaN and no infinity
    return value if isinstance(value, _PLAIN) else _shortened(str(value))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}... ({len(text)} characters)"


def _traceback(text: str) -> str:
    return text if len(text) <= MAX_TRACEBACK_CHARS else f"({len(text)} characters) ...{text[-MAX_TRACEBACK_CHARS:]}"
