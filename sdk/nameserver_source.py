"""Where the NameServers' addresses come from: text, a sequence, a conf file, the environment, or an address server.

A conf file is in the format of Java properties, as RocketMQ's: ``namesrvAddr`` (as in broker.conf) or
``rocketmq.namesrv.addr``, else ``rocketmq.namesrv.domain`` for an address server. Other keys are not looked at, so the
broker's own file will do.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import javaproperties

from mqcommon.addresses import is_address
from mqcommon.arguments import wrong_type
from mqcommon.errors import InvalidArgument, UserError

NameServerSource = str | Path | Sequence[str]

NAMESRV_ADDR = "NAMESRV_ADDR"
ADDR_KEYS = ("namesrvAddr", "rocketmq.namesrv.addr")
DOMAIN_KEY = "rocketmq.namesrv.domain"
SUBGROUP_KEY = "rocketmq.namesrv.domain.subgroup"
# RocketMQ's address servers listen here when the domain has no port.
DOMAIN_PORT = 8080
HTTP_PORT = 80
# Larger files are no conf files.
MAX_CONF_BYTES = 1024 * 1024
_SCHEMES = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class Known:
    """Addresses, or the URL of the address server that has them, or neither."""

    addrs: tuple[str, ...] = ()
    url: str = ""

    def __bool__(self) -> bool:
        return bool(self.addrs or self.url)


def find_nameservers(given: NameServerSource | None, *, required: bool = True) -> Known:
    """What ``given`` says; $NAMESRV_ADDR when it is None or empty.

    Raises InvalidArgument when it is wrong, and UserError when there is no NameServer and one is ``required``.
    """
    if isinstance(given, Path):
        return _in_conf(given)
    if given is not None and not isinstance(given, str):
        if isinstance(given, bytes) or not isinstance(given, Sequence):
            raise wrong_type("nameserver", "a str like 'host:port;host:port', a sequence of them, or a Path", given)
        for number, each in enumerate(given):
            if not isinstance(each, str):
                raise wrong_type(f"nameserver[{number}]", "a str like 'host:port'", each)
        given = ";".join(given)
    found = _in_text(given or os.environ.get(NAMESRV_ADDR) or "")
    if not found and required:
        raise none_given()
    return found


def check_nameservers(addrs: Iterable[str]) -> tuple[str, ...]:
    """``addrs`` as a tuple; InvalidArgument when one of them is not an address."""
    found = tuple(addrs)
    for addr in found:
        if not is_address(addr) or "/" in addr:
            raise InvalidArgument(
                f"NameServer {addr!r} is not of the form host:port (several are separated by ';'), "
                "for example 127.0.0.1:9876"
            )
    return found


def addresses_in(text: str) -> tuple[str, ...]:
    """The addresses in ``host:port;host:port`` (or with commas), each once; InvalidArgument when one is none."""
    parts = (part.strip() for part in text.replace(",", ";").split(";"))
    return check_nameservers(dict.fromkeys(part for part in parts if part))


def none_given() -> UserError:
    """The error of a client that needs a NameServer and knows none."""
    return UserError(f"no NameServer is given: pass host:port, or set {NAMESRV_ADDR}=host:port;host:port")


def _in_text(text: str) -> Known:
    text = text.strip()
    if not text.startswith(_SCHEMES):
        return Known(addresses_in(text))
    if not text.startswith("http:") or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidArgument(f"{text!r} is not the URL of an address server: only plain http:// is supported")
    try:
        address_of(text)
    except ValueError:
        raise InvalidArgument(f"{text!r} is not the URL of an address server: it needs http://host:port/path") from None
    return Known(url=text)


def address_of(url: str) -> tuple[str, int]:
    """Host and port of an address server; ValueError when the URL has none."""
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port
    if not host or port == 0 or "@" in parts.netloc:
        raise ValueError(f"{url!r} has no usable host")
    return host, port or HTTP_PORT


def _in_conf(path: Path) -> Known:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CONF_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the conf file {str(path)!r} cannot be read: {error}") from None
    if len(text) > MAX_CONF_BYTES:
        raise UserError(f"{str(path)!r} is larger than a conf file can be ({MAX_CONF_BYTES} bytes)")
    try:
        values = {key: value.strip() for key, value in javaproperties.loads(text).items()}
    except javaproperties.InvalidUEscapeError as error:
        raise UserError(f"the conf file {str(path)!r} is not in the format of properties: {error}") from None
    for key in ADDR_KEYS:
        if values.get(key):
            return _in_text(values[key])
    domain = values.get(DOMAIN_KEY)
    if not domain:
        keys = ", ".join((*ADDR_KEYS, DOMAIN_KEY))
        raise UserError(f"the conf file {str(path)!r} names no NameServer: set one of {keys}")
    host = domain if is_address(domain) else f"{domain}:{DOMAIN_PORT}"
    return _in_text(f"http://{host}/rocketmq/{values.get(SUBGROUP_KEY) or 'nsaddr'}")
