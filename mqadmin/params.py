"""Options and their values: addresses, times, charsets, files with lists, and the options that commands share.

Letters and long names are RocketMQ's. An invalid value is a usage error that names a valid one.
"""

import codecs
import difflib
import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skylark.mqcommon.errors import ProtocolError, UserError

if TYPE_CHECKING:
    from skylark.remoting.protocol.body import Body
    from skylark.remoting.protocol.requests.groups import GroupRetryPolicy

_ADDR = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:;/\[\]]+):(\d{1,5})")


class Text(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """Text without blanks around it; not empty."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip()
        if not text:
            self.fail("must not be empty", param, ctx)
        return text


class Address(Text):
    """``host:port``, or several separated by ``;`` or commas."""

    name = "host:port"

    def __init__(self, *, several: bool = False) -> None:
        self.several = several

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        several = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
        parts = several if self.several else [text]
        for part in parts:
            found = _ADDR.fullmatch(part)
            if found is None or not 0 < int(found[1]) < 65536:
                self.fail(f"{part!r} is not host:port, as in 127.0.0.1:9876", param, ctx)
        if not parts:
            self.fail("is not host:port, as in 127.0.0.1:9876", param, ctx)
        return ";".join(parts)


class BrokerAddress(Text):
    """The address of one broker: ``host:port``, or a broker's name, which `skylark.mqadmin.scope` looks up."""

    name = "host:port or name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        # A host without a port is a mistake; no broker has such a name.
        looks_like_host = re.fullmatch(r"[0-9.]+|.*[:;,/\[\]\s].*", text) is not None
        return Address().convert(text, param, ctx) if looks_like_host else text


class BrokerName(Text):
    """The name of a broker, or the ``host:port`` of one of its set, which `skylark.mqadmin.scope` looks up."""

    name = "name or host:port"


class PlainAddresses(Text):
    """Servers that may get RocketMQ's signature: see `skylark.remoting.protocol.plain_peers`."""

    name = "addresses"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # Help and completion load no protocol.
        from skylark.remoting.protocol.plain_peers import check_named

        text = super().convert(value, param, ctx) if value else ""
        try:
            check_named(text)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return text


class Attributes(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """``+a=b,-c`` as {"+a": "b", "-c": ""}, the form in which changes of a topic or a group are sent."""

    name = "+a=b,-c"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        attributes: dict[str, str] = {}
        for part in str(value).split(","):
            name, equals, text = part.strip().partition("=")
            adding = name.startswith("+") and bool(equals) and bool(text)
            removing = name.startswith("-") and not equals
            if len(name) < 2 or not (adding or removing):
                self.fail(f"{part!r} is neither +name=value nor -name", param, ctx)
            attributes[name] = text
        return attributes


class Charset(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """A charset that Python knows."""

    name = "charset"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            name = codecs.lookup(str(value).strip()).name
            # Refuse codecs that do not decode to text, and codecs that cannot replace invalid bytes.
            b"a\xff".decode(name, "replace")
        except (LookupError, UnicodeError):
            self.fail(f"{value!r} is not a charset, as in UTF-8 or GBK", param, ctx)
        return name


# Read as ms, such numbers are times in January 1970: refuse them, as they are years, dates or seconds since 1970.
NO_MS = re.compile(r"(19|20)[0-9]{2}|(19|20)[0-9]{6}|[12][0-9]{9}")


class Timestamp(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """ms since 1970, ``now``, or local time as ``yyyy-MM-dd#HH:mm:ss:SSS`` or in ISO 8601, which may name a zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        if text.isascii() and text.isdigit() and not NO_MS.fullmatch(text):
            return int(text)
        if text.lower() == "now":
            return int(time.time() * 1000)
        for read in (_rocketmq_time, _rocketmq_seconds, datetime.fromisoformat):
            try:
                return max(round(read(text).timestamp() * 1000), 0)
            except (ValueError, OverflowError):
                continue
        self.fail(
            f"{text!r} is not a time: give ms (13 digits) since 1970, yyyy-MM-dd#HH:mm:ss:SSS,"
            " 2026-11-21T08:00:00Z or now",
            param,
            ctx,
        )


class ResetTime(Timestamp):
    """A time, or -1 for the end of the queues."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return -1 if str(value).strip() == "-1" else super().convert(value, param, ctx)


def _rocketmq_time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f")


def _rocketmq_seconds(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d#%H:%M:%S")


class RetryPolicyText(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """A group's retry policy as JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "GroupRetryPolicy":
        from skylark.remoting.protocol.requests.groups import GroupRetryPolicy

        try:
            policy = json.loads(value)
        except ValueError as error:
            self.fail(f"is not JSON: {error}", param, ctx)
        if not isinstance(policy, dict) or policy.get("type") not in ("CUSTOMIZED", "EXPONENTIAL"):
            self.fail('needs "type":"CUSTOMIZED" or "type":"EXPONENTIAL"', param, ctx)
        try:
            return GroupRetryPolicy.from_wire(policy)
        except ProtocolError as error:
            self.fail(str(error), param, ctx)


def attributes_option(letter: str) -> click.Option:
    """--attributes, changes of a topic's or a group's attributes."""
    return option(letter, "attributes", "attribute(+a=b,+c=d,-e)", type=Attributes(), default=None)


def option(letter: str, long: str, help: str, **settings: Any) -> click.Option:
    """An option with RocketMQ's letter and long name; the function's argument is the long name in snake_case."""
    argument = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", long).lower()
    names = [f"-{letter}"] if letter else []
    kind = settings.setdefault("type", Text())
    if "metavar" not in settings and not settings.get("is_flag"):
        settings["metavar"] = "true|false" if kind is bool else "N" if isinstance(kind, click.IntRange) else None
    return click.Option([*names, f"--{long}", argument], help=help, **settings)


def broker_addr(help: str, **settings: Any) -> click.Option:
    """-b, the address or the name of one broker: the command gets the address."""
    return option("b", "brokerAddr", help, type=BrokerAddress(), metavar="HOST:PORT|NAME", **settings)


def broker_name(help: str, **settings: Any) -> click.Option:
    """-b, the name or an address of one broker: the command gets the name."""
    return option("b", "brokerName", help, type=BrokerName(), metavar="NAME|HOST:PORT", **settings)


def cluster_name(help: str, **settings: Any) -> click.Option:
    """-c, the name of a cluster."""
    return option("c", "clusterName", help, **settings)


def where(verb: str) -> tuple[click.Option, click.Option]:
    """-b and -c, of which one must be given: the command gets both as a `Scope`."""
    return broker_addr(f"{verb} which broker"), cluster_name(f"{verb} which cluster")


def route_cluster() -> click.Option:
    """-c, a cluster whose brokers are asked instead of the brokers in the topic's route."""
    return option("c", "cluster", "cluster name or parent topic of a lite topic: its brokers are asked", default=None)


def time_option(letter: str, long: str, help: str, **settings: Any) -> click.Option:
    """An option whose value is a time."""
    return option(letter, long, f"{help}[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS|now]", type=Timestamp(), **settings)


def topic_option(help: str = "topic name") -> click.Option:
    """-t, required."""
    return option("t", "topic", help, required=True)


B = TypeVar("B", bound="Body")


def read_list(warn: Callable[[str], object], path: str, kind: type[B], name_member: str) -> list[B]:
    """The bodies in the file; UserError when the file has no such list. ``warn`` is called for unknown members."""
    from skylark.remoting.protocol.dialect import loads

    try:
        with open(path, "rb") as file:
            data = file.read()
        found = loads(data, relaxed_bytes=len(data))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except ProtocolError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, list) or not found:
        raise UserError(f'{path} must hold a JSON list, as in [{{"{name_member}":"..."}}]')
    return [_entry(warn, f"{path}: entry {number}", one, kind, name_member) for number, one in enumerate(found, 1)]


def _entry(warn: Callable[[str], object], place: str, found: Any, kind: type[B], name_member: str) -> B:
    from skylark.remoting.protocol.body import members

    if not isinstance(found, dict) or not isinstance(found.get(name_member), str) or not found[name_member].strip():
        raise UserError(f"{place} is not an object with a {name_member}")
    known = [each.wire for each in members(kind)]
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            warn(f"{place} has a member {name}, which means nothing{f': {near[0]}?' if near else ''}")
    try:
        return kind.from_wire(found)
    except ProtocolError as error:
        raise UserError(f"{place}: {error}") from None
