"""Maps kombu's names, URLs and times to RocketMQ (pure).

An AMQP queue is a topic and a consumer group of the same name, whose members pop. An exchange is a topic, too, read by
the queues that are bound to it. Reply queues, which clients name by UUIDs, share one topic, and have a tag each: a
topic for each client process would never be deleted.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from operator import attrgetter
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from skylark.mqcommon.errors import InvalidArgument

#: The topic of all reply queues.
REPLIES = "celery-replies"
ANY_TAG = "*"
#: The property with the routing key of a message that was sent to an exchange. Tags have digests of long keys.
ROUTING_KEY = "KOMBU_ROUTING_KEY"
#: The property with the priority of a task that reaches its time in steps.
STEP_PRIORITY = "KOMBU_PRIORITY"
#: The argument of a queue that says that it has priorities, from 0 to this number.
MAX_PRIORITY = "x-max-priority"
# AMQP has one byte for it.
_HIGHEST_PRIORITY = 255
#: The property with the time when a message expires, in ms since 1970.
EXPIRES = "KOMBU_EXPIRES_MS"
_EXCHANGE_PREFIX = "exchange-"
# Retry topics have the name twice, and brokers accept at most 127 characters in a topic's name.
_LONGEST = 55
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
# UUIDs as in names of clients' reply queues, and of queues that kombu names.
_UUID = re.compile(r"(amq\.gen-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# The keys end at the last "@" of the addresses: a secret may have one.
_URL = re.compile(r"([a-z0-9+.:_-]*://)?(?:([^/?]*)@)?([^/?]*)([^?]*)(?:\?(.*))?", re.IGNORECASE | re.DOTALL)
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _legal(name: str, longest: int) -> str:
    """``name`` if it is legal, else its legal characters and a digest: equal names stay equal."""
    legal = _ILLEGAL.sub("_", name)
    if legal == name and len(name) <= longest:
        return name
    return f"{legal[: longest - 9]}-{sha256(name.encode()).hexdigest()[:8]}"


def queue_topic(queue: str, prefix: str = "") -> str:
    """The topic of a queue, and the group that consumes it."""
    return _legal(prefix + queue, _LONGEST)


def exchange_topic(exchange: str, prefix: str = "") -> str:
    """The topic of an exchange."""
    return _legal(prefix + _EXCHANGE_PREFIX + exchange, _LONGEST)


def exchange_group(exchange: str, queue: str, prefix: str = "") -> str:
    """The group by which a durable queue reads the exchange that it is bound to."""
    return _legal(f"{prefix}{queue}-of-{exchange}", _LONGEST)


def namesake_group(exchange: str, queue: str, prefix: str = "") -> str:
    """The group by which a durable queue reads an exchange's messages whose key is the exchange's name."""
    return _legal(f"{prefix}{queue}-of-{exchange}/{exchange}", _LONGEST)


def tag_of(routing_key: str) -> str:
    """The tag of messages with this routing key."""
    return _legal(routing_key or "none", 64)


def is_reply_queue(queue: str) -> bool:
    """Whether ``queue`` is the name of a client's reply queue."""
    return _UUID.fullmatch(queue) is not None


@dataclass(frozen=True)
class TransportSettings:
    """The settings from a URL and ``broker_transport_options``."""

    #: Empty: the NameServers in $NAMESRV_ADDR, else the NameServer of this machine.
    nameservers: tuple[str, ...] = ()
    namespace: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    tls: bool = False
    #: Prefix of the names of topics and groups.
    queue_name_prefix: str = ""
    #: How long a task stays hidden from other workers without a renewal by its worker, which renews at half of it.
    visibility_timeout_ms: int = 60_000
    #: Deliveries of a task before it goes to the dead letters; the workers' loss and requeueing count.
    max_deliveries: int = 100
    #: Queues per broker of the topics that are made.
    queues: int = 8
    send_timeout_ms: int = 10_000
    #: How long before its time a task is delivered; the worker keeps it until then. Hides the broker's precision.
    eta_lead_ms: int = 1_000
    #: A later time is reached in steps: brokers take at most 3 days, and remove their oldest files after that time.
    max_delay_ms: int = 24 * 3600 * 1000
    close_timeout_ms: int = 5_000


_OF_OPTIONS: Mapping[str, tuple[str, float]] = {
    "queue_name_prefix": ("queue_name_prefix", 0),
    "max_deliveries": ("max_deliveries", 1),
    "queues": ("queues", 1),
    # In seconds, as the options of this name of kombu's other transports.
    "visibility_timeout": ("visibility_timeout_ms", 1000),
    "send_timeout": ("send_timeout_ms", 1000),
    "eta_lead": ("eta_lead_ms", 1000),
    "max_delay": ("max_delay_ms", 1000),
}


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a URL ``scheme keys@ addresses path ? query`` as they are written, without ``@`` and ``?``."""

    scheme: str
    keys: str
    addresses: str
    path: str
    query: str

    @property
    def namespace(self) -> str:
        return self.path.strip("/")


def _parts(url: str) -> _Parts:
    found = _URL.fullmatch(url)
    assert found is not None
    parts = _Parts(*(text or "" for text in found.groups()))
    if "@" in parts.path + parts.query:
        raise InvalidArgument(
            'the URL of the broker has a "/" or "?" in its keys, or an "@" after its addresses: write them as %2F, %3F'
            ' and %40, as urllib.parse.quote(text, safe="") does'
        )
    return parts


def without_keys(url: str) -> str:
    """The URL without access key and secret key."""
    parts = _parts(url)
    return parts.scheme + parts.addresses + parts.path + (f"?{parts.query}" if parts.query else "")


def with_keys(url: str, access_key: str, secret: str) -> str:
    """A URL of `without_keys`, with these keys. ``secret`` stands there as it is: quoted, or a mask."""
    parts = _parts(url)
    keys = f"{quote(access_key, safe='')}:{secret}@" if access_key else ""
    return parts.scheme + keys + url.removeprefix(parts.scheme)


def settings_of(urls: Sequence[str], options: Mapping[str, Any], *, tls: bool = False) -> TransportSettings:
    """The settings in ``urls`` and the transport options. InvalidArgument names a part that cannot be used.

    ``urls``: kombu cuts ``rocketmq://a:9876;b:9876/`` at the semicolons.
    """
    parts = [_parts(url) for url in urls]
    # kombu's pools tell connections apart by the first URL only.
    if not (parts[0].namespace or parts[0].query) and any(each.namespace or each.query for each in parts):
        raise InvalidArgument(
            'kombu cuts the URL of the broker at ";", and would use one pool of connections for all namespaces and'
            ' options after it: separate the NameServers by ","'
        )
    keys, namespace, query = (
        next(filter(None, map(attrgetter(name), parts)), "") for name in ("keys", "namespace", "query")
    )
    hosts = [host for each in parts for host in re.split("[;,]", each.addresses) if host]
    # The colons of an IPv6 address are within brackets.
    nameservers = [host if ":" in host.rpartition("]")[2] else f"{host}:9876" for host in hosts]
    access_key, _, secret_key = keys.partition(":")
    values: dict[str, Any] = {
        "nameservers": tuple(dict.fromkeys(nameservers)),
        "namespace": unquote(namespace),
        "access_key": unquote(access_key),
        "secret_key": unquote(secret_key),
        "tls": tls,
    }
    if bool(access_key) != bool(secret_key):
        raise InvalidArgument("the URL of the broker has one of access key and secret key; give both, or none")
    for name, text in parse_qsl(query):
        if name == "tls" and text.lower() in _FLAGS:
            values["tls"] = _FLAGS[text.lower()]
        elif name in _OF_OPTIONS:
            values.update(_option(name, text))
        else:
            known = ", ".join(["tls", *_OF_OPTIONS])
            raise InvalidArgument(f"{name}={text} in the URL of the broker is none of: {known}")
    for name in _OF_OPTIONS:
        if options.get(name) is not None:
            values.update(_option(name, options[name]))
    return TransportSettings(**values)


def _option(name: str, given: Any) -> dict[str, Any]:
    key, factor = _OF_OPTIONS[name]
    if not factor:
        return {key: str(given)}
    try:
        value = int(float(given) * factor)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} of the broker's options must be a number, not {given!r}") from None
    if value < 0 or (value < 1 and name not in ("eta_lead",)):
        raise InvalidArgument(f"{name} of the broker's options is too small: {given!r}")
    return {key: value}


def eta_ms_of(headers: Mapping[str, Any] | None) -> int | None:
    """When the task of these headers is due, in ms since 1970; None when it is due now, or is no task of Celery."""
    eta = headers.get("eta") if headers and "task" in headers else None
    if not isinstance(eta, str):
        return None
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return None  # the worker reports it
    if due.tzinfo is None:
        due = due.replace(tzinfo=UTC)
    return (due - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def expires_at_ms(properties: Mapping[str, Any], now_ms: int) -> int | None:
    """When a message with these properties of AMQP expires, in ms since 1970; None for never.

    InvalidArgument when its ``expiration`` is no time in ms, which kombu makes of seconds.
    """
    expiration = properties.get("expiration")
    if expiration is None:
        return None
    try:
        after_ms = int(expiration)
    except (TypeError, ValueError):
        after_ms = -1
    if after_ms < 0:
        raise InvalidArgument(f"the expiration of a message must be a number of ms as text, not {expiration!r}")
    return now_ms + after_ms


def levels_of(arguments: Mapping[str, Any] | None) -> int:
    """How many priorities a queue with these arguments has; 0: none. InvalidArgument when the number is wrong."""
    highest = (arguments or {}).get(MAX_PRIORITY)
    if not highest:
        return 0
    if not isinstance(highest, int) or not 0 < highest <= _HIGHEST_PRIORITY:
        raise InvalidArgument(f"max_priority of a queue must be 1 to {_HIGHEST_PRIORITY}, not {highest!r}")
    return highest + 1


def priority_of(properties: Mapping[str, Any]) -> int:
    """The priority of a message with these properties of AMQP, 0 without one. InvalidArgument when it is no number."""
    priority = properties.get("priority") or 0
    try:
        return max(int(priority), 0)
    except (TypeError, ValueError):
        raise InvalidArgument(f"the priority of a message must be a number from 0 up, not {priority!r}") from None


def is_expired(properties: Mapping[str, str], now_ms: int) -> bool:
    """Whether a message with these properties of RocketMQ is too old to be delivered."""
    try:
        return int(properties[EXPIRES]) <= now_ms
    except (KeyError, ValueError):
        return False  # also when others than kombu wrote it


def deliver_at_ms(eta_ms: int, now_ms: int, settings: TransportSettings) -> int | None:
    """When the broker is to deliver a task that is due at ``eta_ms``: the next step to it; None for now."""
    wanted = eta_ms - settings.eta_lead_ms
    if wanted <= now_ms:
        return None
    return min(wanted, now_ms + settings.max_delay_ms)
