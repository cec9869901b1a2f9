"""Who may use RocketMQ's signature for requests of administrators, as the text of an option. Pure.

RocketMQ's signature does not cover the request code: whoever gets one request can send it as another request. Ordinary
requests of clients are served with this signature, as RocketMQ's clients have no other. Requests of administrators are
served with it only for the users or addresses, and for the codes, that an option names:
``slave@10.0.0.7:21,43,45;10.0.0.9:3004``.
"""

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from skylark.mqcommon.addresses import client_ip
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import username_fault

_WHO: Final = "a user, an address or a network, or both as user@10.0.0.7"
_FORM: Final = f"give WHO:CODE,CODE;... , where WHO is {_WHO}, as in slave@10.0.0.7:21,43,45;10.0.0.9:3004"


@lazy_dataclass(frozen=True, slots=True)
class Who:
    """A user, a network, or a user in a network."""

    name: str
    network: IPv4Network | IPv6Network | None

    def is_it(self, name: str, host: str) -> bool:
        """Whether this is the user ``name`` at ``host``."""
        if self.name and self.name != name:
            return False
        if self.network is None:
            return True
        address = client_ip(host)
        return address is not None and address in self.network


class Whos:
    """Users and networks, parsed from a text with semicolons. ValueError says what is wrong."""

    def __init__(self, text: str) -> None:
        self._all = [_who(part) for part in _parts(text)]

    def has(self, name: str, host: str) -> bool:
        """Whether the user ``name`` at ``host`` is named."""
        return any(who.is_it(name, host) for who in self._all)


class PlainCodes:
    """Request codes for users and networks, parsed from ``WHO:CODE,CODE;...``. ValueError says what is wrong."""

    def __init__(self, text: str) -> None:
        self._all = [_with_codes(part) for part in _parts(text)]

    def allow(self, name: str, host: str, code: int) -> bool:
        """Whether the user ``name`` at ``host`` may use RocketMQ's signature for requests ``code``."""
        return any(code in codes and who.is_it(name, host) for who, codes in self._all)


def plain_refusal(name: str, host: str, code: int) -> str:
    """The refusal for the user ``name`` at ``host`` whose request of an administrator has RocketMQ's signature."""
    return (
        f"request {code} of {name} has RocketMQ's signature, which does not cover the request code: for a client of"
        f" RocketMQ that you trust, add {name}@{host}:{code} to plainSignatureCodes in the conf file of this server"
    )


@lru_cache(maxsize=64)
def plain_codes(text: str) -> PlainCodes:
    """The codes that ``text`` names; none when it is empty."""
    return PlainCodes(text)


@lru_cache(maxsize=64)
def whos(text: str) -> Whos:
    """The users and networks that ``text`` names; none when it is empty."""
    return Whos(text)


def _parts(text: str) -> list[str]:
    return [part for each in text.split(";") if (part := each.strip())]


def _with_codes(part: str) -> tuple[Who, frozenset[int]]:
    who, colon, codes = part.rpartition(":")
    numbers = [number for each in codes.split(",") if (number := each.strip())]
    if not (colon and who.strip() and numbers and all(number.isascii() and number.isdecimal() for number in numbers)):
        raise ValueError(f"{part!r} names nobody, or no request codes: {_FORM}")
    return _who(who.strip()), frozenset(map(int, numbers))


def _who(text: str) -> Who:
    # The whole text first: an IPv6 address in brackets must not be split.
    if (network := _network(text)) is not None:
        return Who("", network)
    name, at, where = text.rpartition("@")
    network = _network(where) if at else None
    name = text if network is None else name
    if username_fault(name) is not None or "/" in name or "=" in name:
        raise ValueError(f"{text!r} is not {_WHO}")
    return Who(name, network)


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text.replace("[", "").replace("]", ""))
    except ValueError:
        return None
