"""Where a daemon listens when nobody says so: on loopback, unless its options name other machines. Pure.

Trying a daemon must not open its port to the network, and setting up a cluster must not need a second option that says
that other machines take part. RocketMQ's own conf files keep RocketMQ's way: all interfaces.
"""

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, NamedTuple

from skylark.mqcommon.addresses import split_address

LOOPBACK: Final = "127.0.0.1"
ALL_INTERFACES: Final = "0.0.0.0"

_BROKER: Final = frozenset(
    ("brokerClusterName", "brokerName", "brokerId", "deleteWhen", "fileReservedTime", "brokerRole", "flushDiskType")
)
_CONTROLLER: Final = frozenset(("controllerDLegerGroup", "controllerDLegerPeers", "controllerDLegerSelfId"))
#: The keys of the conf files that RocketMQ ships, one set for each kind of file.
_ROCKETMQS: Final = frozenset(
    (
        # broker.conf and 2m-*; a broker for traces
        _BROKER,
        _BROKER | {"autoTraceBrokerEnable"},
        # dledger
        frozenset(
            (
                "brokerClusterName", "brokerName", "listenPort", "namesrvAddr", "storePathRootDir",
                "storePathCommitLog", "enableDLegerCommitLog", "dLegerGroup", "dLegerPeers", "dLegerSelfId",
                "sendMessageThreadPoolNums",
            )
        ),
        # controller/quick-start
        (_BROKER - {"flushDiskType"})
        | {
            "enableControllerMode", "controllerAddr", "namesrvAddr", "allAckInSyncStateSet", "listenPort",
            "storePathRootDir", "storePathCommitLog",
        },
        _CONTROLLER | {"enableStartupController"},
        # controller/cluster-3n-namesrv-plugin
        _CONTROLLER | {"listenPort", "enableControllerInNamesrv"},
        # container/2container-2m-2s/nameserver.conf, rmq-proxy.json
        frozenset(("supportActingMaster",)),
        frozenset(("rocketMQClusterName",)),
    )
)  # fmt: skip
_SEPARATORS: Final = re.compile(r"[;,\s]+")
# The number of a member before its address: n0-10.0.0.1:40911.
_MEMBER: Final = re.compile(r"n\d+-")


class Exposure(NamedTuple):
    """The address to listen on. ``because``: why it is all interfaces although no option says so, or empty."""

    address: str
    because: str = ""


def exposure(bind_address: str, named: Iterable[tuple[str, str]], conf_keys: Collection[str] = ()) -> Exposure:
    """Where to listen.

    ``bind_address``: the option; empty when it is not set. ``named``: keys and values of options that may have
    addresses of other machines. ``conf_keys``: the keys in the conf file.
    """
    if bind_address:
        return Exposure(bind_address)
    for key, value in named:
        for host in _hosts(value):
            if not _is_loopback(host):
                return Exposure(ALL_INTERFACES, f"{key} names {host}")
    if frozenset(conf_keys) in _ROCKETMQS:
        return Exposure(ALL_INTERFACES, "the conf file is one of RocketMQ's")
    return Exposure(LOOPBACK)


def opened(address: str, because: str, anybody: str) -> str:
    """The line of the log about a daemon that listens on all interfaces; empty when no line is needed.

    ``because``: see `Exposure`. ``anybody``: what strangers can do there, and how to forbid it; empty when access is
    controlled.
    """
    if not because and not anybody:
        return ""
    why = f", as bindAddress is not set and {because}" if because else ""
    what = f"; access is not controlled: {anybody}" if anybody else "; to change that, set"
    return f"listens on all interfaces, at {address}{why}{what} bindAddress to an address of a network that you trust"


def _hosts(value: str) -> Iterable[str]:
    """The hosts in ``a:1;b:2``, ``n0-a:1;n1-b:2``, ``network=a:1,network=b`` or ``a``."""
    for part in _SEPARATORS.split(value):
        addr = _MEMBER.sub("", part.rpartition("=")[2], count=1)
        if addr:
            yield _host(addr)


def _host(addr: str) -> str:
    bare = addr.strip("[]")
    with suppress(ValueError):
        return str(ip_address(bare))
    try:
        return split_address(addr)[0]
    except ValueError:
        return bare


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() in ("localhost", "ip6-localhost")
