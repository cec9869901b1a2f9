"""Attributes of topics and groups: what RocketMQ's ``+key=value,-key`` does to them."""

from collections.abc import Mapping

#: The queue type of a topic whose batches are stored as one record each.
BATCH_QUEUES = "BatchCQ"

# The attribute values that this broker supports (None: any value).
TOPIC_ATTRIBUTES: Mapping[str, frozenset[str] | None] = {
    "queue.type": frozenset({"SimpleCQ", BATCH_QUEUES}),
    "cleanup.policy": frozenset({"DELETE"}),
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
    "max.message.size": None,
}

# These say how a topic's messages are stored, which is fixed when the topic is made.
UNCHANGEABLE = frozenset({"queue.type", "cleanup.policy"})


def parse_changes(text: str | None) -> dict[str, str | None]:
    """``"+a=1,-b"`` -> ``{"a": "1", "b": None}``; ValueError with RocketMQ's text."""
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


def changes_of(attributes: Mapping[str, str]) -> dict[str, str | None]:
    """``{"+a": "1", "-b": ""}`` -> ``{"a": "1", "b": None}``. A plain name sets the attribute.

    Older tools send back all attributes that they have read.
    """
    gone = {name[1:]: None for name in attributes if name.startswith("-")}
    return gone | {name.removeprefix("+"): value for name, value in attributes.items() if not name.startswith("-")}


def changed(current: Mapping[str, str] | None, changes: Mapping[str, str | None]) -> dict[str, str]:
    """A topic's attributes with ``changes``; ``current`` is None for a topic that is being made.

    ValueError, with RocketMQ's text, for a key or a value that this broker does not support, and for a change of an
    unchangeable attribute. Setting an attribute to its present value is not a change.
    """
    result = dict(current or {})
    for key, value in changes.items():
        if key not in TOPIC_ATTRIBUTES:
            raise ValueError(f"unsupported key: {key}")
        if value is None and current is None:
            raise ValueError(f"only add attribute is supported while creating topic. key: {key}")
        if value is None and key not in result:
            raise ValueError(f"attempt to delete a nonexistent key: {key}")
        if key in UNCHANGEABLE and current is not None and value != result.get(key):
            raise ValueError(f"attempt to update an unchangeable attribute. key: {key}")
        if value is None:
            del result[key]
            continue
        choices = TOPIC_ATTRIBUTES[key]
        if choices is not None and value not in choices:
            raise ValueError(f"value is not supported: {key}={value}; give one of {', '.join(sorted(choices))}")
        result[key] = value
    return result
