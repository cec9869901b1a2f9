"""What a policy is about: a cluster, a namespace, a topic or a group, by its name, a prefix, or ``*``. Pure.

    Topic:orders    Topic:orders-*    Group:*    Namespace:test    Cluster:DefaultCluster    *

A namespace covers the topics and groups whose names begin with ``namespace%``.
"""

from dataclasses import dataclass
from typing import Final

from remoting.protocol.rights import CLUSTER, GROUP, TOPIC

NAMESPACE: Final = "Namespace"
#: Of the resource ``*``.
ANY_KIND: Final = "Any"

_KINDS: Final = {kind.lower(): kind for kind in (CLUSTER, NAMESPACE, TOPIC, GROUP)}
_EXAMPLES: Final = "give Topic:name, Topic:prefix*, Topic:*, so also Group, Namespace and Cluster, or *"
_SEPARATOR: Final = "%"


@dataclass(frozen=True, slots=True)
class Resource:
    """What a policy entry names. ``name`` is a prefix when ``is_prefix``; so an empty prefix means all of the kind."""

    kind: str
    name: str
    is_prefix: bool

    def __str__(self) -> str:
        return "*" if self.kind == ANY_KIND else f"{self.kind}:{self.name}{'*' if self.is_prefix else ''}"


def parse_resource(text: str) -> Resource:
    """The resource that ``text`` names. Raises ValueError, which says what to give, for any other text."""
    if text == "*":
        return Resource(ANY_KIND, "", True)
    word, colon, name = text.partition(":")
    kind = _KINDS.get(word.lower())
    if kind is None or not colon:
        raise ValueError(f"{text!r} is no resource: {_EXAMPLES}")
    is_prefix = name.endswith("*")
    name = name.removesuffix("*")
    if not name and not is_prefix:
        raise ValueError(f"{text!r} names nothing: {_EXAMPLES}")
    if "*" in name or name != name.strip():
        raise ValueError(f"{text!r} is no resource, as * stands only at the end, and blanks nowhere: {_EXAMPLES}")
    return Resource(kind, name, is_prefix)


def namespace_of(kind: str, name: str) -> str | None:
    """The namespace of the topic or group ``name``; None when it is in none."""
    if kind not in (TOPIC, GROUP):
        return None
    namespace, separator, rest = name.partition(_SEPARATOR)
    return namespace if separator and namespace and rest else None
