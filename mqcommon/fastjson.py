"""fastjson's pretty form, with tabs and bare number keys: RocketMQ's metadata files, and what its mqadmin prints.

Not standard JSON. As in fastjson's output, a map with number keys is on one line with its closing brace on the next,
and a set is on one line.
"""

import json
from collections.abc import Mapping, Set
from typing import Any


def pretty(value: Any, depth: int = 0) -> str:
    """``value`` in fastjson's pretty form, indented as at ``depth`` levels; keys of a dict serve as an ordered set."""
    if isinstance(value, Mapping):
        return _object(value, depth)
    if isinstance(value, (list, tuple)):
        return _block("[", [pretty(item, depth + 1) for item in value], "]", depth)
    if isinstance(value, Set):
        return "[" + ",".join(pretty(item, depth + 1) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _object(value: Mapping[Any, Any], depth: int) -> str:
    if value and all(isinstance(key, int) for key in value):
        inside = ",".join(f"{key}:{pretty(item, depth + 1)}" for key, item in value.items())
        return "{" + inside + "\n" + "\t" * depth + "}"
    members = [f"{json.dumps(str(key), ensure_ascii=False)}:{pretty(item, depth + 1)}" for key, item in value.items()]
    return _block("{", members, "}", depth)


def _block(opening: str, items: list[str], closing: str, depth: int) -> str:
    if not items:
        return opening + closing
    inner = "\n" + "\t" * (depth + 1)
    return opening + inner + ("," + inner).join(items) + "\n" + "\t" * depth + closing
