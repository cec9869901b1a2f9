"""What kombu's names, URLs and times are in RocketMQ (pure).

An AMQP queue is a topic and a consumer group of the same name, whose members pop. An exchange is a topic, too, that the
queues bound to it read. Reply queues, which clients name by UUIDs, share one topic, and have a tag each: a topic for
each client process would never go away.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, unquote

from mqcommon.errors import InvalidArgument

#: The topic of all reply queues.
REPLIES = "celery-replies"
ANY_TAG = "*"
#: The property with the routing key of a message that was sent to an exchange. Tags have digests of long keys.
ROUTING_KEY = "KOMBU_ROUTING_KEY"
_EXCHANGE_PREFIX = "exchange-"
# Retry topics have the name twice, and brokers accept at most 127 characters in a topic's name.
_LONGEST = 55
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SCHEME = re.compile(r"^[a-z0-9+.:_-]*://", re.IGNORECASE)
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _legal(name: str, longest: int) -> str:
    """``name`` where it is a legal one, else its legal characters and a digest: equal names stay equal."""
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
    """The group by which a durable queue reads what an exchange has with its own name as the key (`queue_topic`)."""
    return _legal(f"{prefix}{queue}-of-{exchange}/{exchange}", _LONGEST)


def tag_of(routing_key: str) -> str:
    """The tag of messages with this routing key."""
    return _legal(routing_key or "none", 64)


def is_reply_queue(queue: str) -> bool:
    """Whether it has the name of a client's reply queue."""
    return _UUID.fullmatch(queue) is not None


@dataclass(frozen=True)
class TransportSettings:
    """What a URL and ``broker_transport_options`` say."""

    #: None: those of $NAMESRV_ADDR, else the one of this machine.
    nameservers: tuple[str, ...] = ()
    namespace: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    tls: bool = False
    #: In front of the names of topics and groups.
    queue_name_prefix: str = ""
    #: How long a task is hidden from other workers without a sign of the worker that has it. Renewed at half of it.
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


def settings_of(urls: Sequence[str], options: Mapping[str, Any], *, tls: bool = False) -> TransportSettings:
    """The settings that ``urls`` and the transport options say. InvalidArgument names what cannot be used.

    ``urls``: kombu cuts ``rocketmq://a:9876;b:9876/`` at the semicolons.
    """
    user, path, query = "", "", ""
    nameservers: list[str] = []
    for url in urls:
        rest = _SCHEME.sub("", url)
        rest, _, found = rest.partition("?")
        query = query or found
        at, slash, found = rest.partition("/")
        path = path or (found if slash else "")
        head, _, hosts = at.rpartition("@")
        user = user or head
        nameservers += [host if ":" in host else f"{host}:9876" for host in re.split("[;,]", hosts) if host]
    access_key, _, secret_key = user.partition(":")
    values: dict[str, Any] = {
        "nameservers": tuple(dict.fromkeys(nameservers)),
        "namespace": unquote(path.strip("/")),
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


def deliver_at_ms(eta_ms: int, now_ms: int, settings: TransportSettings) -> int | None:
    """When the broker is to deliver a task that is due at ``eta_ms``: the next step to it; None for now."""
    wanted = eta_ms - settings.eta_lead_ms
    if wanted <= now_ms:
        return None
    return min(wanted, now_ms + settings.max_delay_ms)
