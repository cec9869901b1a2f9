"""An SQL92 expression as a Python function of a message's properties.

The function takes the stored properties with a PAIR_END before and after them. It searches only the properties that the
expression names, and stops as soon as the result is known. Names and texts of users become constants in the source
text, written by `repr` of bytes; all other source text is this module's.

A condition is generated in one of two forms. The form of `_truth` is true when the condition is true, and not true when
the condition is false or null: this is enough for the final result. The form of `_value` is True, False or None. A
value that cannot be compared raises ValueError, and the message does not match. So an operand whose value does not
matter is left out only where it could not raise, or where nothing else could make the message match (``is_last``).
Texts of properties become numbers as Java reads them. Neighbour: mqcommon/sql/parser.py.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from math import isnan
from typing import Any

from skylark.mqcommon.sql.nodes import (
    BOOLEAN,
    DOUBLE,
    INT,
    INT_MAX,
    LONG_MAX,
    NULL,
    STRING,
    Cast,
    Compare,
    Constant,
    Equal,
    In,
    Logic,
    Node,
    Not,
    Property,
    Search,
    kind_of,
)

_WHOLE = re.compile(rb"[+-]?[0-9]+")
_SPACES = bytes(range(33))
_DECIMAL = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_HEX = re.compile(rb"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]{1,9}[fFdD]?")
_NAMED = re.compile(rb"[+-]?(?:NaN|Infinity)")
# Longer texts are not numbers, or have more zeros than anybody writes.
_MOST = 400


def as_whole(text: bytes, kind: str) -> int:
    """The text as a whole number of ``kind``, INT or else long. ValueError if it is none, or out of range."""
    if len(text) > _MOST or not _WHOLE.fullmatch(text):
        raise ValueError(text)
    value, most = int(text), INT_MAX if kind == INT else LONG_MAX
    if not -most - 1 <= value <= most:
        raise ValueError(text)
    return value


def as_double(text: bytes) -> float:
    """The text as a double. ValueError if it is none."""
    text = text.strip(_SPACES)
    if len(text) > _MOST:
        raise ValueError(text[:_MOST])
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip(b"fFdD"))
    if _NAMED.fullmatch(text):
        return float(text)
    if _HEX.fullmatch(text):
        try:
            # Digits of an exponent are hexadecimal digits, too, so only the last letter is a suffix.
            return float.fromhex((text[:-1] if text[-1:] in b"fFdD" else text).decode())
        except OverflowError:
            return float("-inf" if text[:1] == b"-" else "inf")
    raise ValueError(text)


def order(left: float, right: float) -> int:
    """A result below, equal to or above 0, as Java orders doubles: NaN is the largest, -0.0 is below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    return (_rank(left) > _rank(right)) - (_rank(left) < _rank(right))


def _rank(value: float) -> int:
    if isnan(value):
        return 2
    return 0 if value == 0 and str(value).startswith("-") else 1


def as_truth(text: bytes) -> bool:
    """The text as a boolean; everything but TRUE is false."""
    return text.lower() == b"true"


def impossible() -> bool:
    """Raises ValueError: stands for a comparison that RocketMQ cannot make with any values."""
    raise ValueError("such values cannot be compared")


Matches = Callable[[bytes], bool]

# Texts of fewer digits than this are numbers of the type, whatever the digits are.
_DIGITS = {INT: 10, "long": 19, DOUBLE: 19}
_SEARCHES = {"CONTAINS": "{1} in {0}", "STARTSWITH": "{0}.startswith({1})", "ENDSWITH": "{0}.endswith({1})"}


def compiled(node: Node) -> Matches:
    """The function for a condition."""
    writer = _Writer(node)
    source = writer.source()
    called = (as_double, as_truth, as_whole, impossible, order)
    names: dict[str, Any] = {function.__name__: function for function in called}
    exec(compile(source, "<SQL92 filter>", "exec"), names)
    matches: Matches = names["matches"]
    return matches


def properties_in(node: Node) -> Iterator[str]:
    """The names of the properties in the condition, each as often as it is read."""
    match node:
        case Property():
            yield node.name
        case Cast() | Not() | In() | Search():
            yield from properties_in(node.of)
        case Logic():
            for part in node.parts:
                yield from properties_in(part)
        case Equal() | Compare():
            yield from properties_in(node.left)
            yield from properties_in(node.right)


class _Writer:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._count = 0
        # A property that is needed more than once is read first, into a variable.
        often = [name for name, times in Counter(properties_in(node)).items() if times > 1]
        self._kept = {name: f"p{number}" for number, name in enumerate(often)}

    def source(self) -> str:
        lines = ["def matches(raw):", "    try:"]
        lines += [f"        {variable} = {self._read(name)}" for name, variable in self._kept.items()]
        lines += [
            f"        return bool({self._truth(self._node, True)})",
            "    except ValueError:",
            "        return False",
        ]
        return "\n".join(lines)

    def _new(self) -> str:
        self._count += 1
        return f"t{self._count}"

    # --- conditions

    def _truth(self, node: Node, is_last: bool) -> str:
        match node:
            case Logic(is_and=False, parts=parts):
                last = len(parts) - 1
                return _join(" or ", [self._truth(part, is_last and at == last) for at, part in enumerate(parts)])
            case Logic(parts=parts) if is_last or not any(map(_may_raise, parts[1:])):
                return _join(" and ", [self._truth(part, is_last) for part in parts])
            case Equal(left=Property(name=name), right=Constant(kind="string", value=str(text))) if (
                text and name not in self._kept
            ):
                return self._has_pair(name.encode(), text.encode(errors="surrogatepass"))
            case Compare() | Equal() | In() | Search():
                return self._simple(node, "False")
            case Cast():
                return "False"
            case Constant():
                return str(node.value is True)
        return f"({self._value(node)}) is True"

    def _value(self, node: Node) -> str:
        match node:
            case Logic(is_and=is_and, parts=parts):
                stop = str(not is_and)
                names = [self._new() for _ in parts]
                tests = [
                    f"{stop} if ({name} := {self._value(part)}) is {stop} else "
                    for name, part in zip(names, parts, strict=True)
                ]
                unknown = " or ".join(f"{name} is None" for name in names)
                return f"({''.join(tests)}None if {unknown} else {is_and})"
            case Not(of=of):
                name = self._new()
                return f"(None if ({name} := {self._value(of)}) is None else not {name})"
            case Cast(of=of):
                return f"(None if {self._operand(of)} is None else False)"
            case Constant():
                return str(node.value)
            case Search() if not node.text:
                return "False"
        return self._simple(node, "None")

    def _simple(self, node: Node, unknown: str) -> str:
        """A comparison or test; ``unknown`` stands for null."""
        match node:
            case Compare(sign=sign, left=left, right=right):
                return self._compare(sign, left, right, unknown)
            case Equal(left=left, right=right):
                return self._equal(left, right, unknown)
            case In(of=of, texts=texts, negated=negated):
                name, found = self._new(), frozenset(text.encode(errors="surrogatepass") for text in texts)
                word = "not in" if negated else "in"
                return f"({unknown} if ({name} := {self._operand(of)}) is None else {name} {word} {_set(found)})"
            case Search(how=how, of=of, text=text, negated=negated):
                return self._search(how, of, text, negated)
        raise AssertionError(node)

    def _search(self, how: str, of: Node, text: str, negated: bool) -> str:
        if not text:
            return "False"
        name = self._new()
        read = f"({name} := {self._operand(of)})"
        if kind_of(of) != STRING:
            return f"({read}, False)[1]"
        test = _SEARCHES[how].format(name, repr(text.encode(errors="surrogatepass")))
        return f"({read} is not None and {'not ' if negated else ''}{test})"

    # --- comparisons

    def _compare(self, sign: str, left: Node, right: Node, unknown: str) -> str:
        kinds = kind_of(left), kind_of(right)
        if NULL in kinds:
            return unknown
        if kinds == (STRING, STRING):
            return self._both(left, right, unknown, f"order(as_double({{0}}), as_double({{1}})) {sign} 0")
        return self._both(left, right, unknown, self._numbers(sign, kinds))

    def _equal(self, left: Node, right: Node, unknown: str) -> str:
        kinds = kind_of(left), kind_of(right)
        if isinstance(right, Constant) and right.kind == NULL:
            return self._is_null(left)
        match kinds:
            case _ if kinds[0] == NULL:
                return f"(True if {self._is_null(right)} else {unknown})"
            case ("string", "string") | ("boolean", "boolean"):
                test = "{0} == {1}"
            case ("string", "boolean"):
                test = "as_truth({0}) == {1}"
            case ("boolean", "string"):
                test = "impossible()"
            case ("boolean", _) | (_, "boolean"):
                test = "False"
            case _:
                test = self._numbers("==", kinds)
        return self._both(left, right, unknown, test, is_equal=True)

    def _both(self, left: Node, right: Node, unknown: str, test: str, *, is_equal: bool = False) -> str:
        """``test`` of both values; the result for a missing value is RocketMQ's."""
        one, two = self._new(), self._new()
        read_one, read_two = f"({one} := {self._operand(left)})", f"({two} := {self._operand(right)})"
        done = test.format(one, two)
        if isinstance(right, Constant):
            return f"({unknown} if {read_one} is None else {test.format(one, self._operand(right))})"
        if not is_equal:
            return f"({unknown} if {read_one} is None else {unknown} if {read_two} is None else {done})"
        if isinstance(left, Constant):
            return f"(False if {read_two} is None else {test.format(self._operand(left), two)})"
        # Read both values first: with two missing values the comparison is true.
        known = f"False if {two} is None else {done}"
        return f"({read_one}, {read_two}, (True if {two} is None else {unknown}) if {one} is None else {known})[2]"

    def _numbers(self, sign: str, kinds: tuple[str, str]) -> str:
        """The test of two numbers, one of which may be the text of a property."""
        if kinds[0] == STRING:
            return _against(sign, "{0}", "{1}", kinds[1])
        if kinds[1] == STRING:
            return _against(_MIRRORED[sign], "{1}", "{0}", kinds[0])
        return f"{{0}} {sign} {{1}}"

    # --- values

    def _is_null(self, node: Node) -> str:
        # A constant needs no comparison at run time: Python would warn of a constant that is compared with None.
        return str(node.value is None) if isinstance(node, Constant) else f"({self._operand(node)} is None)"

    def _operand(self, node: Node) -> str:
        match node:
            case Property(name=name):
                return self._kept.get(name) or self._read(name)
            case Constant(kind="string", value=str(text)):
                return repr(text.encode(errors="surrogatepass"))
            case Constant():
                return repr(node.value)
        return self._value(node)

    def _read(self, name: str) -> str:
        """The value of a property; of two properties with this name the last. An empty value counts as missing."""
        mark, at = f"\x02{name}\x01".encode(), self._new()
        size = len(mark)
        found = f"({at} := raw.rfind({mark!r}) + {size}) != {size - 1}"
        return f"(raw[{at}:raw.find(b'\\x02', {at})] or None if {found} else None)"

    def _has_pair(self, name: bytes, text: bytes) -> str:
        """Whether the message has this name with exactly this value: one search, without a copy of the value."""
        at, pair, mark = self._new(), b"\x02%b\x01%b\x02" % (name, text), b"\x02%b\x01" % name
        return f"(({at} := raw.rfind({pair!r})) >= 0 and raw.find({mark!r}, {at} + {len(pair) - 1}) < 0)"


_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "=="}


def _against(sign: str, text: str, number: str, kind: str) -> str:
    """The test of a property's ``text`` against a ``number`` of this kind."""
    is_plain = f"{text}.isdigit() and len({text}) < {_DIGITS[kind]}"
    if kind == DOUBLE:
        return f"float({text}) {sign} {number} if {is_plain} else order(as_double({text}), {number}) {sign} 0"
    return f"(int({text}) if {is_plain} else as_whole({text}, {kind!r})) {sign} {number}"


def _may_raise(node: Node) -> bool:
    match node:
        case Compare():
            return True
        case Equal(left=left, right=right):
            kinds = kind_of(left), kind_of(right)
            plain = kinds in ((STRING, STRING), (BOOLEAN, BOOLEAN), (STRING, BOOLEAN)) or NULL in kinds
            return not plain or _may_raise(left) or _may_raise(right)
        case Not(of=of) | Search(of=of):
            return _may_raise(of)
        case Logic(parts=parts):
            return any(map(_may_raise, parts))
    return False


def _join(word: str, parts: list[str]) -> str:
    return f"({word.join(parts)})"


def _set(texts: frozenset[bytes]) -> str:
    return "{" + ", ".join(map(repr, sorted(texts))) + "}"
