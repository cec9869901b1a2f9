"""Code that both kinds of access control share: accounts/ (ACL 1.0) and users/ (ACL 2.0). Pure.

It finds the needs of each request in the descriptions of requests (remoting/protocol/rights.py), reads the address of a
client in the form that rules compare, and holds the explanation of a decision for administrators.
"""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.plain_codes import PlainCodes, plain_refusal
from skylark.remoting.protocol.requests.query import VIEW_MESSAGE_BY_ID
from skylark.remoting.protocol.requests.registrations import NOTIFY_MIN_BROKER_ID_CHANGE
from skylark.remoting.protocol.requests.table import BY_CODE
from skylark.remoting.protocol.rights import PUB, SUB, UPDATE_CLUSTER, Need, need_to_send, need_topic

# The actions of clients: a request for which one of these actions suffices is a client's.
_CLIENTS_ACTIONS: Final = frozenset({*PUB, *SUB})
# A client's viewMessage, which reads no more than a pull does, but needs Get of the cluster.
_OF_CLIENTS: Final = frozenset({VIEW_MESSAGE_BY_ID.code})

#: Requests of NameServers, which have no account here. The broker only asks the NameServers then.
FROM_NAMESERVERS: Final = (NOTIFY_MIN_BROKER_ID_CHANGE.code,)


def needs_of(request: Command) -> list[Need]:
    """The rights that ``request`` needs. Raises RequestRefused when its body cannot be read."""
    # A code without a description is treated as the most dangerous one: its sender must be allowed to change the
    # cluster.
    described = BY_CODE.get(request.code)
    return UPDATE_CLUSTER.of_ext(request.ext) if described is None else described.needs(request)


def needs_about(code: int, topic: str, group: str) -> list[Need]:
    """The rights that a request ``code`` about the topic and the group needs; an empty name is left out."""
    described = BY_CODE.get(code)
    right = described.right if described else None
    return (right or UPDATE_CLUSTER).about(topic, group)


def needs_to_consume(topic: str) -> list[Need]:
    """The right to consume the topic. Its messages are read, so a retry topic counts by its whole name."""
    return [need_topic(topic, SUB)]


def needs_to_send(topic: str) -> list[Need]:
    """The right to send to the topic."""
    return [need_to_send(topic)]


def is_of_administrators(code: int, needs: Sequence[Need]) -> bool:
    """Whether only administrators send requests ``code`` with these needs, and clients never do."""
    return code not in _OF_CLIENTS and any(_CLIENTS_ACTIONS.isdisjoint(need.actions) for need in needs)


def plain_fault(code: int, name: str, host: str, needs: Sequence[Need], allowed: PlainCodes) -> str | None:
    """Why RocketMQ's signature of the user ``name`` is not accepted for a request ``code``; None when it is.

    Whoever obtains a request with RocketMQ's signature can send it again with another code.
    """
    if not is_of_administrators(code, needs) or allowed.allow(name, host, code):
        return None
    return plain_refusal(name, host, code)


YES: Final = "yes"
NO: Final = "no"


class ExplanationStep(NamedTuple):
    """One question, its answer, and the rule that gave it."""

    step: str
    outcome: str
    rule: str


@lazy_dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request is served or refused: all questions up to the question that decided."""

    is_allowed: bool
    #: The refusal as the client gets it, or why the request is served.
    text: str
    steps: list[ExplanationStep]


Address = IPv4Address | IPv6Address


@lru_cache(maxsize=4_096)
def host_of(remote: str) -> str:
    """The host of ``host:port``."""
    return split_address(remote)[0]


@lru_cache(maxsize=1_024)
def address_of(host: str) -> Address | None:
    """The address ``host``, with an IPv4-mapped IPv6 address as its IPv4 address. None if it is no address."""
    try:
        address = ip_address(host.partition("%")[0].strip("[]"))
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
