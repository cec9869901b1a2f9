"""Attributes of topics and groups: what RocketMQ's ``+key=value,-key`` does to them."""

from collections.abc import Mapping

# The values of a topic's attributes that this broker acts by, or that ask nothing of it.
TOPIC_ATTRIBUTES: Mapping[str, frozenset[str] | None] = {
    "queue.type": frozenset({"SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE"}),
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
    "max.message.size": None,
}


def parse_changes(text: str | None) -> dict[str, str | None]:
    """``"+a=1,-b"`` -> ``{"a": "1", "b": None}``; ValueError with RocketMQ's words."""
    changes: dict[str, str | None] = {}
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        name, equals, value = part.partition("=")
        key = name.strip()[1:]
        if equals and not name.startswith("+"):
            raise ValueError(f"add/alter attribute format is wrong: {part}")
        if not equals and not name.startswith("-"):
            raise ValueError(f"delete attribute format is wrong: {part}")
        if key in changes:
            raise ValueError(f"key duplication: {key}")
        changes[key] = value.strip() if equals else None
    return changes


def changed(
    current: Mapping[str, str], changes: Mapping[str, str | None], known: Mapping[str, frozenset[str] | None]
) -> dict[str, str]:
    """``current`` with ``changes``; ValueError for a key or value that this broker does not know."""
    result = dict(current)
    for key, value in changes.items():
        if key not in known:
            raise ValueError(f"unsupported key: {key}")
        if value is None:
            if key not in result:
                raise ValueError(f"attempt to delete a nonexistent key: {key}")
            del result[key]
            continue
        choices = known[key]
        if choices is not None and value not in choices:
            raise ValueError(f"value is not supported: {key}={value}; give one of {', '.join(sorted(choices))}")
        result[key] = value
    return result
