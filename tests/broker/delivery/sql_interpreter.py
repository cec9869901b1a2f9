"""RocketMQ's rules for SQL92 expressions, written down plainly: what the generated code is compared with."""

import math
import re

from skylark.mqcommon.sql.nodes import Cast, Compare, Constant, Equal, In, Logic, Node, Not, Property, Search


class Raised(Exception):
    """RocketMQ raises an exception here: the message does not match."""


class Number:
    """A number with its Java type: int, long or double."""

    def __init__(self, kind: str, value: float) -> None:
        self.kind, self.value = kind, value


def matches(node: Node, properties: dict[str, str]) -> bool:
    try:
        return evaluate(node, properties) is True
    except Raised:
        return False


def evaluate(node: Node, properties: dict[str, str]) -> object:
    """None, a bool, a str or a Number."""
    match node:
        case Constant(kind=kind, value=value):
            return Number(kind, value) if kind in ("int", "long", "double") else value  # type: ignore[arg-type]
        case Property(name=name):
            return properties.get(name) or None
        case Cast(of=of):
            return None if evaluate(of, properties) is None else False
        case Not(of=of):
            value = evaluate(of, properties)
            return None if value is None else not value
        case Logic(is_and=is_and, parts=parts):
            unknown = False
            for part in parts:
                value = evaluate(part, properties)
                if value is (not is_and):
                    return value
                unknown |= value is None
            return None if unknown else is_and
        case In(of=of, texts=texts, negated=negated):
            value = evaluate(of, properties)
            return None if value is None else (value in texts) != negated
        case Search(how=how, of=of, text=text, negated=negated):
            if not text:
                return False
            value = evaluate(of, properties)
            if not isinstance(value, str):
                return False
            found = {"CONTAINS": text in value, "STARTSWITH": value.startswith(text), "ENDSWITH": value.endswith(text)}
            return found[how] != negated
        case Equal(left=left, right=right):
            one, two = evaluate(left, properties), evaluate(right, properties)
            if one is None:
                return True if two is None else None
            return False if two is None else order(one, two) == 0
        case Compare(sign=sign, left=left, right=right):
            one = evaluate(left, properties)
            if one is None:
                return None
            two = evaluate(right, properties)
            if two is None:
                return None
            if isinstance(one, str) and isinstance(two, str):
                one, two = double(one), double(two)
            found = order(one, two)
            return {"<": found < 0, "<=": found <= 0, ">": found > 0, ">=": found >= 0}[sign]
    raise AssertionError(node)


def order(one: object, two: object) -> int:
    """Java's compareTo after the conversions of RocketMQ's ComparisonExpression; -1 for what has no conversion."""
    if isinstance(one, str) and isinstance(two, Number):
        one = converted(one, two.kind)
    elif isinstance(one, Number) and isinstance(two, str):
        two = converted(two, one.kind)
    elif isinstance(one, str) and isinstance(two, bool):
        one = one.lower() == "true"
    elif isinstance(one, bool) and isinstance(two, str):
        raise Raised
    if isinstance(one, Number) and isinstance(two, Number):
        return _order(one.value, two.value)
    if type(one) is not type(two):
        return -1
    return (one > two) - (one < two)  # type: ignore[operator]


def _order(one: float, two: float) -> int:
    def key(value: float) -> tuple[bool, float, bool]:
        return (math.isnan(value), 0 if math.isnan(value) else value, math.copysign(1, value) > 0)

    return (key(one) > key(two)) - (key(one) < key(two))


def converted(text: str, kind: str) -> Number:
    if kind == "double":
        return double(text)
    bits = 32 if kind == "int" else 64
    if not re.fullmatch("[+-]?[0-9]+", text) or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
        raise Raised
    return Number(kind, int(text))


def double(text: str) -> Number:
    text = text.strip("".join(map(chr, range(33))))
    if re.fullmatch("[+-]?(NaN|Infinity)", text):
        return Number("double", float(text))
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?", text):
        raise Raised
    return Number("double", float(text.rstrip("fFdD")))
