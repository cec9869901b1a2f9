"""Reports as JSON: members have the names that the tools print. Pure.

A member is printed by its own name in camel case (``consumer_offset`` as ``consumerOffset``). Other names, and members
that may be left out, are the metadata of fields: ``last_timestamp_ms: int = field(metadata=named("lastTimestamp"))``.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

_NAME, _OPTIONAL, _FLAT = "skylark.json.name", "skylark.json.optional", "skylark.json.flat"
_NOT_PRINTED = "skylark.json.not_printed"
#: Metadata of a member that is left out when it is None.
OPTIONAL: Mapping[str, object] = {_OPTIONAL: True}
#: Metadata of a flat member: a report or a table of texts whose own members replace it; None adds no member.
FLAT: Mapping[str, object] = {_FLAT: True}
#: Metadata of a member that is never in JSON: a warning, which tools print elsewhere.
NOT_PRINTED: Mapping[str, object] = {_NOT_PRINTED: True}


def named(name: str, *, is_optional: bool = False) -> Mapping[str, object]:
    """Metadata of a member that has a name of its own. ``is_optional``: the member is left out when it is None."""
    return {_NAME: name, _OPTIONAL: is_optional}


def plain(value: object) -> Any:
    """``value`` as JSON has it: reports as objects, sets and tuples as arrays, values of JSON unchanged.

    Bodies and headers of the protocol keep their names and values on the wire.
    """
    if (sent := getattr(value, "to_wire", None) or getattr(value, "to_ext", None)) is not None:
        return plain(sent())
    if value is None or type(value) in (str, int, float, bool):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        # The result is a JSON document, whose members have any type.
        document: dict[str, Any] = {}
        for attribute, (name, is_optional, is_flat) in _members_of(value).items():
            item = getattr(value, attribute)
            if is_flat:
                document |= {} if item is None else plain(item)
            elif item is not None or not is_optional:
                document[name] = plain(item)
        return document
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | Set):
        return [plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def member(report: object, json_name: str) -> Any:
    """The member that JSON shows as ``json_name``, also inside a flat member. Raises AttributeError."""
    attributes, flat = _attributes_of(report)
    if (attribute := attributes.get(json_name)) is not None:
        return getattr(report, attribute)
    for attribute in flat:
        if is_dataclass(inside := getattr(report, attribute)):
            try:
                return member(inside, json_name)
            except AttributeError:
                continue
    raise AttributeError(f"{type(report).__name__} has no member {json_name!r}")


def _members_of(report: object) -> dict[str, tuple[str, bool, bool]]:
    return _members(type(report))  # type: ignore[arg-type]  # mypy confuses the hash of objects with the class's hash


@cache
def _members(cls: type) -> dict[str, tuple[str, bool, bool]]:
    """Attribute → its name in JSON, whether it may be left out, and whether it is flat."""
    return {
        each.name: (
            each.metadata.get(_NAME, _camel_case(each.name)),
            each.metadata.get(_OPTIONAL, False),
            each.metadata.get(_FLAT, False),
        )
        for each in fields(cls)
        if _NOT_PRINTED not in each.metadata
    }


def _attributes_of(report: object) -> tuple[dict[str, str], list[str]]:
    return _attributes(type(report))  # type: ignore[arg-type]  # as above


@cache
def _attributes(cls: type) -> tuple[dict[str, str], list[str]]:
    """Name in JSON → attribute, and the flat attributes; cached, as tables look up members of many rows."""
    members = _members(cls).items()
    return (
        {name: attribute for attribute, (name, _, is_flat) in members if not is_flat},
        [attribute for attribute, (_, _, is_flat) in members if is_flat],
    )


def _camel_case(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)
