"""The broker's names and addresses. Names and addresses that the options leave out are taken from the machine.

Neighbours: options.py; registrar.py (registers them), handlers that answer with the broker's name or address.
"""

import fcntl
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from skylark.broker.options import BrokerOptions
from skylark.mqcommon.addresses import format_address, parse_advertised, server_address
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.exposure import Exposure, exposure
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

_SIOCGIFADDR = 0x8915
_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_.-]+")


@lazy_dataclass(slots=True)
class Identity:
    """How NameServers, clients and slaves know the broker. ``broker_id`` and ``ha_addr`` change with the role."""

    cluster_name: str
    broker_name: str
    broker_id: int
    addr: str
    ha_addr: str
    #: The addresses for clients of some networks, with ports, as a registration has them; "" for none.
    advertised: str = ""


def resolved(options: BrokerOptions) -> BrokerOptions:
    """``options`` with broker name, addresses and paths filled in."""
    root = _path(options.store_path_root_dir)
    changes: dict[str, Any] = {"store_path_root_dir": root}
    if options.store_path_commit_log and _path(options.store_path_commit_log) != f"{root}/commitlog":
        raise ConfigError(
            f"storePathCommitLog: the commit log must be in {root}/commitlog; leave the key out, and move the files of "
            f"{options.store_path_commit_log} there, or link it: ln -s {options.store_path_commit_log} {root}/commitlog"
        )
    if not options.broker_name:
        changes["broker_name"] = _host_name()
    changes["bind_address"] = bind_address = listening(options).address
    ip1 = options.broker_ip1 or _first_address(bind_address)
    changes["broker_ip1"] = _checked_ip("brokerIP1", ip1)
    changes["broker_ip2"] = _checked_ip("brokerIP2", options.broker_ip2 or ip1)
    for key, name in (
        ("brokerName", changes.get("broker_name", options.broker_name)),
        ("brokerClusterName", options.broker_cluster_name),
    ):
        if not _LEGAL_NAME.fullmatch(name):
            raise ConfigError(f"{key}: {name!r} is not a legal name; use letters, digits and any of %|_-.")
    return replace(options, **changes)


def listening(options: BrokerOptions, conf_keys: Collection[str] = ()) -> Exposure:
    """Where the broker listens; ``conf_keys`` are the keys in its conf file."""
    server = options.rmq_address_server_domain if options.fetch_namesrv_addr_by_address_server else ""
    named = (
        ("namesrvAddr", options.namesrv_addr),
        ("rmqAddressServerDomain", server),
        ("brokerIP1", options.broker_ip1),
        ("brokerIP2", options.broker_ip2),
        ("advertisedAddresses", options.advertised_addresses),
        ("haMasterAddress", options.ha_master_address),
        ("controllerAddr", options.controller_addr),
        ("dLegerPeers", options.d_leger_peers),
    )
    return exposure(options.bind_address, named, conf_keys)


def identity_of(options: BrokerOptions, listen_port: int, ha_port: int = 0) -> Identity:
    """The identity of a broker with ``resolved`` options that listens on these ports."""
    ha_port = ha_port or options.ha_listen_port or listen_port + 1
    return Identity(
        options.broker_cluster_name,
        options.broker_name,
        options.broker_id,
        format_address(options.broker_ip1, listen_port),
        format_address(options.broker_ip2, ha_port),
        ",".join(f"{network}={addr}" for network, addr in parse_advertised(options.advertised_addresses, listen_port)),
    )


def registered_addresses(identity: Identity, options: BrokerOptions) -> frozenset[str]:
    """The addresses of this broker that clients get from NameServers, and of its fast port."""
    found = [identity.addr, *(part.rpartition("=")[2] for part in identity.advertised.split(",") if part)]
    if fast := options.fast_port:
        found.append(with_port(identity.addr, fast))
    return frozenset(map(server_address, found))


def with_port(addr: str, port: int) -> str:
    """``addr`` with another port."""
    return f"{addr.rpartition(':')[0]}:{port}"


def _path(text: str) -> str:
    return os.path.abspath(os.path.expanduser(text))


def _host_name() -> str:
    return socket.gethostname() or "DEFAULT_BROKER"


def _checked_ip(key: str, text: str) -> str:
    try:
        return str(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        raise ConfigError(f"{key}: {text!r} is not an IP address; give one at which clients reach it") from None


def _first_address(bind_address: str) -> str:
    """An address at which clients reach this broker: the bind address, else the first that is not loopback."""
    try:
        bound = ipaddress.ip_address(bind_address)
    except ValueError:
        bound = None
    if bound is not None and not bound.is_unspecified:
        return str(bound)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an IPv4 address
                continue
            # struct ifreq: 16 bytes with the name, then a sockaddr_in, whose address begins after family and port.
            address = ipaddress.IPv4Address(answer[20:24])
            if not address.is_loopback:
                return str(address)
    return "127.0.0.1"
