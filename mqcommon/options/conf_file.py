"""Conf files: reading them into an options dataclass, updates while a daemon runs, and saving changed options.

Order of precedence: command line, conf file, environment variable, default. The file comes before the environment, as
``updateBrokerConfig`` writes its changes into the file.
A ``ConfigError`` names file, line, key and remedy. RocketMQ's keys that are accepted without effect are in the class
variable ``ignored_keys``.
An edit of a user's conf file replaces values in place and leaves comments and order as they were.
Neighbours: fields.py (declaration, one value), environment.py, command_line.py (flags, docs), the daemons' options.py.
"""

import dataclasses
import difflib
import json
import os
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from skylark.mqcommon.disk.atomic import exclusive, write_atomic
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.disk.secret_file import check_mode
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.options.environment import values_of
from skylark.mqcommon.options.fields import Option, Value, options_of, parse_value, place, value_text

T = TypeVar("T")

# The limit of a peer's change of options, which is read on the event loop. A whole conf file of RocketMQ has 15 KB.
MAX_UPDATE_BYTES = 64 * 1024
MAX_UPDATE_LINES = 1_000

_SECRET_TEXT = "******"


def load_conf(
    cls: type[T],
    path: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    warnings: list[str] | None = None,
) -> T:
    """Read a conf file. ``overrides`` (by field name or key, as text) beat it, and it beats the environment.

    The file has ``key=value`` lines. With the class variable ``conf_may_be_json`` it may be a JSON object, too.
    Only its owner may have rights to a file with secrets (mode 0600). Harmless mistakes (a key given twice, a RocketMQ
    key that Skylark does not use) are added to ``warnings``.
    """
    options = {o.key: o for o in options_of(cls)}
    warnings = [] if warnings is None else warnings
    environ = os.environ if environ is None else environ
    # By precedence, the lowest first: each source replaces values of those before it.
    values = values_of(cls, environ, warnings)
    if path is not None:
        file = os.fspath(path)
        text, status = _read_text(file)
        in_file = _read_entries(cls, options, text, file, warnings)
        secrets = [o.key for o in options.values() if o.secret and in_file.get(o.name)]
        if secrets:
            check_mode(file, status, ", ".join(secrets))
        values |= in_file
    # An option may be given by its key or by its flag's name; twice is a mistake, even with the same value.
    names = {o.name: o for o in options.values()}
    spelled: dict[str, str] = {}
    for name, text in (overrides or {}).items():
        found = names.get(name) or options.get(name)
        if found is None:
            raise ConfigError(f"{name}: {_unknown(name, options)}")
        if (other := spelled.setdefault(found.name, name)) != name:
            raise ConfigError(f"{other} and {name} are one option; give one of them")
        values[found.name] = parse_value(found, text, found.flag)
    try:
        return cls(**values)
    except ConfigError as error:  # a rule between options, in the class's own __post_init__
        raise ConfigError(f"{os.fspath(path)}: {error}" if path is not None else str(error)) from None


def conf_keys(cls: type[Any], path: str | os.PathLike[str] | None) -> frozenset[str]:
    """The keys in a conf file for ``cls``; none without a file."""
    if path is None:
        return frozenset()
    file = os.fspath(path)
    return frozenset(key for _, key, _ in _entries(cls, _read_text(file)[0], file))


def raw_value(
    cls: type[Any],
    key: str,
    path: str | os.PathLike[str] | None,
    overrides: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
) -> str:
    """The text that ``overrides``, the conf file or the environment give for ``key``, "" for none.

    Other lines may be wrong, and the file may be missing: `load_conf` reports that.
    """
    o = next(o for o in options_of(cls) if o.key == key)
    if given := overrides.get(o.name, overrides.get(key, "")):
        return given
    found = (os.environ if environ is None else environ).get(o.variable, "").strip()
    if path is None:
        return found
    with suppress(ConfigError):
        for _, other, value in _entries(cls, _read_text(os.fspath(path))[0]):
            found = value if other == key else found
    return found


def entries(text: str, source: str = "") -> Iterator[tuple[int, str, str]]:
    """``(line, key, value)`` of a Java properties text; ``source`` is named in errors."""
    line = 1
    # Imported here, as it imports parsers of XML and of e-mail, and a daemon can do without a conf file.
    import javaproperties

    try:
        for element in javaproperties.parse(text):
            if isinstance(element, javaproperties.KeyValue):
                yield line, element.key, element.value.strip()
            source_lines = element.source.replace("\r\n", "\n").replace("\r", "\n")
            line += source_lines.count("\n")  # a continued entry spans several
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError(f"{place(source, line)}{error}; write \\u and four hexadecimal digits") from None


def _entries(cls: type[Any], text: str, source: str = "") -> Iterator[tuple[int, str, str]]:
    """As `entries`, for a conf file of ``cls``."""
    is_json = getattr(cls, "conf_may_be_json", False) and text.lstrip().startswith("{")
    return json_entries(text, source) if is_json else entries(text, source)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object: a dict would drop a key that comes twice."""


def json_entries(text: str, source: str = "") -> Iterator[tuple[int, str, str]]:
    """``(line, key, value)`` of a JSON object, with values as a properties text has them.

    An object as value, such as credentials, gives its JSON. A key with null is left out.
    """
    try:
        found = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        column = f"column {error.colno}"
        raise ConfigError(f"{place(source, error.lineno)}this is not JSON ({error.msg}, {column})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place(source)}this is not JSON: {error}") from None
    at = 0
    for key, value in found:
        # The parser does not tell where a key was; keys come in order.
        at = max(text.find(json.dumps(key, ensure_ascii=False), at), at)
        if value is not None:
            yield text.count("\n", 0, at) + 1, key, _json_text(value)


def _json_text(value: object) -> str:
    return value.strip() if isinstance(value, str) else json.dumps(_plain(value))


def _plain(value: object) -> object:
    if isinstance(value, _Pairs):
        return {key: _plain(inner) for key, inner in value}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def to_properties(options: Any) -> str:
    """All options as ``key=value`` lines, sorted by key; secrets are masked."""
    lines = []
    for o in sorted(options_of(type(options)), key=lambda o: o.key):
        value = getattr(options, o.name)
        lines.append(f"{o.key}={_SECRET_TEXT if o.secret and value else _escape(value_text(value))}\n")
    return "".join(lines)


def read_update(body: bytes) -> list[tuple[str, str]]:
    """The keys and values that a peer sent. ConfigError: too many, or unreadable (then with RocketMQ's text)."""
    lines = body.count(b"\n") + body.count(b"\r")
    if len(body) > MAX_UPDATE_BYTES or lines > MAX_UPDATE_LINES:
        limits = f"at most {MAX_UPDATE_BYTES} in {MAX_UPDATE_LINES} lines are taken"
        raise ConfigError(f"the options have {len(body)} bytes in {lines} lines, {limits}")
    try:
        return [(key, value) for _, key, value in entries(body.decode())]
    except (UnicodeDecodeError, ConfigError):
        raise ConfigError("string2Properties error") from None


def update(options: T, pairs: Iterable[tuple[str, str]]) -> T:
    """A copy with the values of ``pairs``; a key that cannot change must keep its value."""
    known = {o.key: o for o in options_of(type(options))}
    # All values are read before anything changes, so a wrong one leaves all options as they were.
    changes: dict[str, Value] = {}
    for key, value in pairs:
        o = known.get(key)
        if o is None:
            raise ConfigError(f"{key}: {_unknown(key, known)}")
        if o.secret and value == _SECRET_TEXT:  # a client sent back the masked value of to_properties
            continue
        parsed = parse_value(o, value, "")
        if parsed == getattr(options, o.name):
            continue
        if not o.mutable:
            raise ConfigError(f"{key}: cannot change while running; set it in the conf file and restart")
        changes[o.name] = parsed
    return typing.cast(T, dataclasses.replace(typing.cast(Any, options), **changes))


def changes_of(old: T, new: T) -> dict[str, str]:
    """Key and text of the values of ``new`` that differ from the values of ``old``."""
    options = options_of(type(new))
    return {o.key: value_text(getattr(new, o.name)) for o in options if getattr(new, o.name) != getattr(old, o.name)}


def _read_text(file: str) -> tuple[str, os.stat_result]:
    """The text of a file, and its status."""
    try:
        with open(file, "rb") as stream:
            data, status = stream.read(), os.fstat(stream.fileno())
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; name a conf file that exists") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}; check the path and its permissions") from None
    try:
        return data.decode("utf-8-sig"), status
    except UnicodeDecodeError:  # Java's own encoding of properties; decoding it never fails
        return data.decode("iso-8859-1"), status


def _read_entries(
    cls: type[Any], options: Mapping[str, Option], text: str, file: str, warnings: list[str]
) -> dict[str, Value]:
    ignored: frozenset[str] = getattr(cls, "ignored_keys", frozenset())
    values: dict[str, Value] = {}
    first_lines: dict[str, int] = {}
    for line, key, value in _entries(cls, text, file):
        o = options.get(key)
        if o is not None:
            values[o.name] = parse_value(o, value, file, line)
        elif key in ignored:
            warnings.append(f"{file}:{line}: {key}: a RocketMQ option that Skylark does not use; it has no effect")
        else:
            raise ConfigError(f"{file}:{line}: {key}: {_unknown(key, options)}")
        if key in first_lines:
            warnings.append(f"{file}:{line}: {key}: given before, in line {first_lines[key]}; this one counts")
        first_lines.setdefault(key, line)
    return values


def _unknown(key: str, options: Mapping[str, Option]) -> str:
    lower = {known.lower(): known for known in options}
    near = difflib.get_close_matches(key.lower(), lower, n=1)
    advice = f"did you mean {lower[near[0]]}?" if near else "docs/reference/conf.md lists all keys"
    return f"unknown key; {advice}"


def _escape(text: str) -> str:
    """Escape only what would be read differently: RocketMQ writes values plainly, so ``:`` and ``=`` stay."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def edit(text: str, changes: Mapping[str, str]) -> str:
    """A properties text with ``changes`` applied; comments, blank lines and order are kept, new keys come last."""
    import javaproperties  # here, for the reason that `entries` gives

    file = javaproperties.PropertiesFile.loads(text)
    for key, value in changes.items():
        file[key] = value
    edited: str = file.dumps(separator="=")
    return edited


def save_changes(fs: FileSystem, path: str, changes: Mapping[str, str]) -> None:
    """Apply ``changes`` to the file, which is created when missing; the old one is kept as ``.bak``. Blocks.

    The instances of one broker have one conf file, and may change it at once: each change is applied to the file as it
    is at that moment. StoreLocked when another process keeps it locked.
    """
    with exclusive(fs, path):
        data = fs.read(path) if fs.exists(path) else b""
        try:
            text, encoding = data.decode("utf-8"), "utf-8"
        except UnicodeDecodeError:  # the encoding of Java's own properties; decoding it never fails
            text, encoding = data.decode("iso-8859-1"), "iso-8859-1"
        write_atomic(fs, path, edit(text, changes).encode(encoding), keep_backup=True)
