"""Whether the policies of a user allow an action. Pure.

The order, which is RocketMQ's but for two things:

1. Custom policies are asked first; Default ones only when no Custom one matches.
2. Among entries that match, the one with the most specific resource decides: the name, then the longest prefix, then
   ``Topic:*``, then in the same way the namespace, then ``*``. In RocketMQ, namespaces of policies match nothing.
3. Of entries that are equally specific, Deny wins. In RocketMQ, Allow wins.

An entry matches when it has the action, or All, and the client's address is among its addresses, if it has any.
A request may need one of several actions: then it is enough if one of them is allowed.
"""

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from skylark.broker.security.access import Address, address_of
from skylark.mqcommon.bounded_cache import BoundedCache
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo
from skylark.remoting.protocol.rights import CLUSTER, GROUP, TOPIC

NAMESPACE: Final = "Namespace"
#: The kind of the resource ``*``.
ANY_KIND: Final = "Any"

_KINDS: Final = {kind.lower(): kind for kind in (CLUSTER, NAMESPACE, TOPIC, GROUP)}
_EXAMPLES: Final = "give Topic:name, Topic:prefix*, Topic:*, so also Group, Namespace and Cluster, or *"
_SEPARATOR: Final = "%"


@lazy_dataclass(frozen=True, slots=True)
class Resource:
    """What a policy entry is about: a cluster, a namespace, a topic or a group, by its name, a prefix, or ``*``.

        Topic:orders    Topic:orders-*    Group:*    Namespace:test    Cluster:DefaultCluster    *

    A namespace covers the topics and groups whose names begin with ``namespace%``. ``name`` is a prefix when
    ``is_prefix``, so an empty prefix means all of the kind.
    """

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


ALL: Final = "All"
ANY: Final = "Any"
ACTIONS: Final = (ALL, ANY, "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
ALLOW: Final = "Allow"
DENY: Final = "Deny"
CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"

#: The limit for the remembered decisions of one subject.
MAX_DECIDED_BYTES: Final = 256 * 1024

Network = IPv4Network | IPv6Network


@lazy_dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy entry, ready to be matched."""

    text: str
    is_prefix: bool
    name: str
    actions: frozenset[str]
    networks: tuple[Network, ...]
    is_allow: bool

    def matches(self, action: str, address: Address | None) -> bool:
        """Whether the entry applies to ``action`` of a client at ``address``; the caller has compared the resource."""
        if action not in self.actions and ALL not in self.actions and action != ANY:
            return False
        return not self.networks or (address is not None and any(address in network for network in self.networks))


@lazy_dataclass(frozen=True, slots=True)
class PolicyDecision:
    """Whether an action is allowed, and by which entry; ``entry`` is empty when none matches, which refuses."""

    is_allowed: bool
    entry: str = ""
    policy_type: str = ""


_NONE: Final = PolicyDecision(False)


class _ResourceEntries:
    """Entries about one kind of resource."""

    def __init__(self) -> None:
        self._named: dict[str, list[PolicyEntry]] = {}
        self._prefixed: dict[str, list[PolicyEntry]] = {}

    def add(self, entry: PolicyEntry) -> None:
        entries = self._prefixed if entry.is_prefix else self._named
        entries.setdefault(entry.name, []).append(entry)

    def tiers(self, name: str) -> Iterator[list[PolicyEntry]]:
        """Tiers of entries about ``name``, the most specific tier first; entries of one tier are equally specific."""
        if (named := self._named.get(name)) is not None:
            yield named
        # Prefixes of one subject are few, as its entries are bounded: looking at all of them needs no tree.
        matching = [prefix for prefix in self._prefixed if name.startswith(prefix)]
        for prefix in sorted(matching, key=len, reverse=True):
            yield self._prefixed[prefix]


class Policies:
    """The policies of one subject. Made once for each version of its row."""

    def __init__(self, acl: AclInfo) -> None:
        self._types: list[tuple[str, dict[str, _ResourceEntries]]] = []
        # Earlier decisions, as clients ask for the same again and again.
        self._decided = BoundedCache[tuple[str, str, tuple[str, ...], str], PolicyDecision](MAX_DECIDED_BYTES)
        for policy_type in (CUSTOM, DEFAULT):
            kinds: dict[str, _ResourceEntries] = {}
            for policy in acl.policies:
                if (policy.policy_type or CUSTOM) == policy_type:
                    for info in policy.entries:
                        entry, kind = _entry(info)
                        kinds.setdefault(kind, _ResourceEntries()).add(entry)
            if kinds:
                self._types.append((policy_type, kinds))

    def decide(self, kind: str, name: str, actions: tuple[str, ...], host: str) -> PolicyDecision:
        """Whether a client at ``host`` may do one of ``actions`` on the resource."""
        asked = (kind, name, actions, host)
        decision = self._decided.get(asked)
        if decision is None:
            decision = self._best(kind, name, actions, host)
            self._decided.put(asked, decision, 300 + 4 * len(name))
        return decision

    def _best(self, kind: str, name: str, actions: tuple[str, ...], host: str) -> PolicyDecision:
        address = address_of(host)
        last = _NONE
        for action in actions:
            decision = self._decide(kind, name, action, address)
            if decision.is_allowed:
                return decision
            last = decision if decision.entry else last
        return last

    def _decide(self, kind: str, name: str, action: str, address: Address | None) -> PolicyDecision:
        for policy_type, kinds in self._types:
            for tier in _tiers(kinds, kind, name):
                matching = [entry for entry in tier if entry.matches(action, address)]
                if matching:
                    # The first tier with a matching entry decides alone: a general Deny does not override a more
                    # specific Allow, nor a general Allow a more specific Deny.
                    deciding = next((entry for entry in matching if not entry.is_allow), matching[0])
                    return PolicyDecision(deciding.is_allow, deciding.text, policy_type)
        return _NONE


def _tiers(kinds: dict[str, _ResourceEntries], kind: str, name: str) -> Iterator[list[PolicyEntry]]:
    if (own := kinds.get(kind)) is not None:
        yield from own.tiers(name)
    if (namespaces := kinds.get(NAMESPACE)) is not None and (namespace := namespace_of(kind, name)) is not None:
        yield from namespaces.tiers(namespace)
    if (all_kinds := kinds.get(ANY_KIND)) is not None:
        yield from all_kinds.tiers("")


def _entry(info: PolicyEntryInfo) -> tuple[PolicyEntry, str]:
    resource = parse_resource(info.resource)
    networks = tuple(parse_source(text) for text in info.source_ips or ())
    is_allow, actions = info.decision == ALLOW, frozenset(info.actions)
    return PolicyEntry(entry_text(info), resource.is_prefix, resource.name, actions, networks, is_allow), resource.kind


def entry_text(info: PolicyEntryInfo) -> str:
    """The entry as logs and refusals show it."""
    text = f"{info.resource} {','.join(info.actions)} {info.decision}"
    return f"{text} from {','.join(info.source_ips)}" if info.source_ips else text


def parse_source(text: str) -> Network:
    """An address, or a network like 10.1.0.0/16. Raises ValueError for any other text."""
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is no address: give one as 10.1.2.3, or a network as 10.1.0.0/16") from None
