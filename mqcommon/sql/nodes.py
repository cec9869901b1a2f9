"""What an SQL92 expression consists of, and the checks that RocketMQ makes when it puts one together.

The type of each value is known before any message: properties are texts. Only whether a property exists is unknown.
RocketMQ's rules: a comparison with a missing property is null; NOT, AND and OR have three values; a text that is
compared with a number must be one, else the whole expression fails, and the message does not match.
"""

from typing import Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

INT, LONG, DOUBLE, STRING, BOOLEAN, NULL = "int", "long", "double", "string", "boolean", "null"
NUMBERS: Final = (INT, LONG, DOUBLE)
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1


@lazy_dataclass(frozen=True, slots=True)
class Constant:
    """A value. A number with a sign is not ``literal``: RocketMQ checks it less strictly."""

    kind: str
    value: str | int | float | bool | None
    literal: bool = True


@lazy_dataclass(frozen=True, slots=True)
class Property:
    """The value of a property, a text; null when the message has none."""

    name: str


@lazy_dataclass(frozen=True, slots=True)
class Cast:
    """A property where a condition is expected: never true, as properties are texts."""

    of: Property


@lazy_dataclass(frozen=True, slots=True)
class Not:
    of: "Node"


@lazy_dataclass(frozen=True, slots=True)
class Logic:
    """``parts`` combined with AND, or else with OR, from left to right."""

    is_and: bool
    parts: tuple["Node", ...]


@lazy_dataclass(frozen=True, slots=True)
class Equal:
    left: "Node"
    right: "Node"


@lazy_dataclass(frozen=True, slots=True)
class Compare:
    """``sign`` is one of < <= > >=."""

    sign: str
    left: "Node"
    right: "Node"


@lazy_dataclass(frozen=True, slots=True)
class In:
    of: Property
    texts: tuple[str, ...]
    negated: bool


@lazy_dataclass(frozen=True, slots=True)
class Search:
    """CONTAINS, STARTSWITH or ENDSWITH: false for a missing property and for an empty text, also when negated."""

    how: str
    of: "Node"
    text: str
    negated: bool


Node = Constant | Property | Cast | Not | Logic | Equal | Compare | In | Search


class Misfit(Exception):
    """Nodes that cannot be put together; the parser adds the place."""


def kind_of(node: Node) -> str:
    """The type of the node's values, when there is one."""
    if isinstance(node, Constant):
        return node.kind
    return STRING if isinstance(node, Property) else BOOLEAN


def is_condition(node: Node) -> bool:
    """Whether RocketMQ takes the node for a condition."""
    if isinstance(node, Constant):
        return node.literal and node.kind in (BOOLEAN, NULL)
    return not isinstance(node, Property)


def condition(node: Node) -> Node:
    """The node as a condition."""
    if is_condition(node):
        return node
    if isinstance(node, Property):
        return Cast(node)
    raise Misfit("a condition is needed here, such as a > 5")


def logic(is_and: bool, parts: list[Node]) -> Node:
    """Conditions joined by AND or OR."""
    return Logic(is_and, tuple(map(condition, parts)))


def negated(node: Node) -> Constant:
    """The number with the other sign; null for everything else."""
    if isinstance(node, Constant) and node.kind in NUMBERS:
        assert isinstance(node.value, int | float)
        return Constant(node.kind, -node.value, False)
    return Constant(NULL, None, False)


def equal(left: Node, right: Node) -> Node:
    """``left = right``."""
    for node in (left, right):
        if isinstance(node, Constant) and node.literal and node.value is None:
            raise Misfit("NULL cannot be compared; write IS NULL, or IS NOT NULL")
    both = isinstance(left, Constant) and isinstance(right, Constant)
    if both and is_condition(left) and not is_condition(right):
        raise Misfit("TRUE and FALSE cannot be compared with this")
    return Equal(left, right)


def compare(sign: str, left: Node, right: Node) -> Node:
    """``left sign right``."""
    for node in (left, right):
        is_text = isinstance(node, Constant) and node.literal and node.kind not in NUMBERS
        if is_text or is_condition(node):
            raise Misfit(f"only numbers and properties can be compared with {sign}")
    return Compare(sign, left, right)


def between(of: Node, low: Node, high: Node, is_not: bool) -> Node:
    """``of [NOT] BETWEEN low AND high``."""
    if is_not:
        return Logic(False, (compare("<", of, low), compare(">", of, high)))
    one, two = (node.value if isinstance(node, Constant) and node.literal else None for node in (low, high))
    if isinstance(one, int | float) and isinstance(two, int | float) and one > two:
        raise Misfit(f"{one} is greater than {two}")
    return Logic(True, (compare(">=", of, low), compare("<=", of, high)))


def is_in(of: Node, texts: list[str], is_not: bool) -> Node:
    """``of [NOT] IN (texts)``."""
    if not isinstance(of, Property):
        raise Misfit("IN needs a property before it")
    return In(of, tuple(texts), is_not)
