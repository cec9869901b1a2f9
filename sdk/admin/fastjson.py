"""JSON as RocketMQ's tool prints it: fastjson's pretty form, with tabs and unquoted numeric keys.

Not standard JSON and for people only; ``--output json`` prints the standard kind. A map with numeric keys
stands on one line with its closing brace on the next, as fastjson leaves it.
"""

import json
from collections.abc import Mapping
from typing import Any


def pretty(value: Any, depth: int = 0) -> str:
    """``value`` in fastjson's pretty form."""
    if isinstance(value, Mapping):
        return _object(value, depth)
    if isinstance(value, (list, tuple)):
        return _block("[", [pretty(item, depth + 1) for item in value], "]", depth)
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
