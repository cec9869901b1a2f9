"""Asks all servers for the facts. A missing answer is a fact, too, so gathering never fails as a whole."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from skylark.mqadmin.doctor.certificates import not_after_ms
from skylark.mqadmin.doctor.facts import (
    BrokerFacts,
    CertificateFacts,
    ControllerFacts,
    Facts,
    GroupFacts,
    NameServerFacts,
    OrderFacts,
    PortFacts,
    ReplicaSetFacts,
    few,
)
from skylark.mqcommon.addresses import format_address, split_address
from skylark.mqcommon.errors import BrokerError, NotNameServer, RouteNotFound, SkylarkError
from skylark.mqcommon.names import DLQ_PREFIX, RETRY_PREFIX
from skylark.remoting.net.sockets import connect
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.group_subscriptions import Wanted, wanted_of
from skylark.sdk.admin.failures import explain
from skylark.sdk.admin.order_records import NAMESPACE, lacking
from skylark.sdk.admin.reports.backlog import undone_of
from skylark.sdk.endpoint import Answers, ask_all
from skylark.sdk.routes import away_because

if TYPE_CHECKING:
    from skylark.sdk.admin.client import Admin

T = TypeVar("T")

#: The most groups that are checked: each group costs a request to each broker.
MAX_GROUPS = 200
#: The most ordered topics that are checked: each topic costs a request to each NameServer.
MAX_ORDERS = 1_000
#: The most members of a group that are asked for their subscriptions.
MAX_MEMBERS = 32

# Codes for a group or topic that was deleted meanwhile, or that a broker does not have.
_GONE = (
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.CONSUMER_NOT_ONLINE,
)

#: The certificate of the server at (host, port), in DER. Raises OSError.
ReadCertificate = Callable[[str, int], Awaitable[bytes]]
# A TLS option with one of these values means that the broker speaks TLS.
_TLS_VALUES = ("true", "permissive", "enforcing")

#: Connects to (host, port), and closes the connection. Raises OSError.
ProbePort = Callable[[str, int], Awaitable[None]]


class Servers(Protocol):
    """Access to the servers of a cluster: a command's Session, or a person at the console."""

    @property
    def admin(self) -> "Admin": ...

    @property
    def namesrv_addrs(self) -> list[str]: ...

    def admin_at(self, namesrv_addr: str, /) -> AbstractAsyncContextManager["Admin"]: ...

    async def each(self, keys: Iterable[str], ask: Callable[[str], Awaitable[T]], /) -> Answers[T]: ...


async def gather(servers: Servers, probe_port: ProbePort, read_certificate: ReadCertificate, max_lag: int) -> Facts:
    """All facts that the checks use."""
    name_servers = tuple([await _name_server(servers, addr) for addr in servers.namesrv_addrs])
    brokers = await _brokers(servers, probe_port, name_servers)
    topics = sorted({topic for one in name_servers for topic in one.topics})
    groups = [topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX)]
    unanswered: list[tuple[str, str]] = []
    lags = await _answers(servers, groups[:MAX_GROUPS], lambda group: _group(servers.admin, group), unanswered)
    dead = await _answers(
        servers,
        [topic for topic in topics if topic.startswith(DLQ_PREFIX)][:MAX_GROUPS],
        lambda topic: _count(servers.admin, topic),
        unanswered,
    )
    wanted = await _answers(servers, groups[:MAX_GROUPS], lambda group: _wanted(servers, group), unanswered)
    controllers, replica_sets = await _controllers(servers, brokers)
    orders = tuple(
        [order for one in name_servers if one.error is None for order in await _orders(servers, one.addr, unanswered)]
    )
    return Facts(
        name_servers=name_servers,
        brokers=brokers,
        groups=tuple(one for rows in lags.values() for one in rows),
        certificates=await _certificates(servers, read_certificate, brokers),
        now_ms=time.time_ns() // 1_000_000,
        groups_left_out=max(len(groups) - MAX_GROUPS, 0),
        dead_letters={topic.removeprefix(DLQ_PREFIX): count for topic, count in dead.items()},
        unanswered=tuple(unanswered),
        max_lag=max_lag,
        controllers=controllers,
        replica_sets=replica_sets,
        wanted={group: members for group, members in wanted.items() if members},
        orders=orders,
    )


async def probe_port(host: str, port: int, timeout_ms: int) -> None:
    """Open a connection, and close it. Raises OSError with a short reason."""
    from skylark.remoting.net.sockets import connect_reason

    with trio.move_on_after(timeout_ms / 1000):
        try:
            await (await connect(host, port)).aclose()
        except OSError as error:
            raise OSError(connect_reason(error)) from None
        return
    raise OSError(f"cannot be reached within {timeout_ms} ms")


async def _name_server(servers: Servers, addr: str) -> NameServerFacts:
    try:
        async with servers.admin_at(addr) as admin:
            info = await admin.cluster_info()
            topics = await admin.topic_list()
            is_guarded = await _is_guarded(admin, addr)
    except SkylarkError as error:
        refused = isinstance(error, BrokerError) and not isinstance(error, NotNameServer)
        return NameServerFacts(addr, explain(error), refused)
    brokers = {name: dict(one.broker_addrs) for name, one in info.broker_addr_table.items()}
    absent = {one.broker_name: away_because(one) for one in info.absent_brokers or ()}
    return NameServerFacts(addr, None, False, brokers, info.contested or {}, frozenset(topics), is_guarded, absent)


async def _is_guarded(admin: "Admin", addr: str) -> bool:
    """Whether the NameServer takes registrations only from users that its conf file names."""
    try:
        config = (await admin.namesrv_config([addr]))[addr]
    except BrokerError:
        # Only administrators may read the NameServer's options, so it has access control.
        return True
    return config.get("aclEnable") == "true" or bool(config.get("registrationUsers"))


async def _brokers(
    servers: Servers, probe_port: ProbePort, name_servers: Iterable[NameServerFacts]
) -> tuple[BrokerFacts, ...]:
    # NameServers may have different addresses for one broker: ask each address; the checks report the difference.
    known = {
        f"{name} {broker_id} {addr}": BrokerFacts(name, broker_id, addr)
        for one in name_servers
        for name, addrs in one.brokers.items()
        for broker_id, addr in addrs.items()
    }
    answers = await servers.each(sorted(known), lambda key: _broker(servers.admin, probe_port, known[key]))
    return tuple(answers.values[key] for key in sorted(answers.values))


async def _broker(admin: "Admin", probe_port: ProbePort, known: BrokerFacts) -> BrokerFacts:
    began_ms = time.time_ns() // 1_000_000
    try:
        # The first request may also connect. `clock_skew_ms` allows for the time of the request, on both sides.
        info = await admin.broker_runtime_info(known.addr)
        took_ms = time.time_ns() // 1_000_000 - began_ms
        config = await admin.broker_config(known.addr)
    except SkylarkError as error:
        return replace(known, error=explain(error), refused=isinstance(error, BrokerError))
    ports = []
    for kind, addr in ports_of(known, config):
        try:
            await probe_port(*split_address(addr))
        except OSError as error:
            ports.append(PortFacts(kind, addr, str(error)))
        else:
            ports.append(PortFacts(kind, addr))
    return replace(
        known, info=info, config=config, asked_ms=began_ms + took_ms // 2, took_ms=took_ms, ports=tuple(ports)
    )


async def _controllers(
    servers: Servers, brokers: Iterable[BrokerFacts]
) -> tuple[tuple[ControllerFacts, ...], dict[str, ReplicaSetFacts]]:
    """The Controllers in the options of all brokers, and the sets that these Controllers know."""
    names: dict[tuple[str, ...], set[str]] = {}
    for broker in brokers:
        addrs = tuple(sorted(addr for addr in broker.config.get("controllerAddr", "").split(";") if addr))
        if broker.has_controllers and addrs:
            names.setdefault(addrs, set()).add(broker.name)

    async def ask(addr: str) -> ControllerFacts:
        try:
            known = await servers.admin.controller_metadata(addr)
        except SkylarkError as error:
            return ControllerFacts(addr, explain(error))
        return ControllerFacts(addr, None, known.is_leader, known.controller_leader_address or "")

    every = sorted({addr for group in names for addr in group})
    found = tuple((await servers.each(every, ask)).values.values())
    sets: dict[str, ReplicaSetFacts] = {}
    for group, of_group in names.items():
        if any(one.is_leader for one in found if one.addr in group):
            with suppress(SkylarkError):  # the leader has gone meanwhile; its sets are not checked
                table = (await servers.admin.sync_state_sets(group, sorted(of_group))).replicas_info_table
                sets |= {
                    name: ReplicaSetFacts(
                        one.master_address or "",
                        {each.broker_address: each.alive for each in one.in_sync_replicas},
                        {each.broker_address: each.alive for each in one.not_in_sync_replicas},
                    )
                    for name, one in table.items()
                }
    return found, sets


async def _certificates(
    servers: Servers, read_certificate: ReadCertificate, brokers: Iterable[BrokerFacts]
) -> tuple[CertificateFacts, ...]:
    known = {broker.addr: broker for broker in brokers if speaks_tls(broker.config)}

    async def read(addr: str) -> CertificateFacts:
        try:
            return CertificateFacts(known[addr].where, not_after_ms(await read_certificate(*split_address(addr))))
        except (OSError, ValueError) as error:
            return CertificateFacts(known[addr].where, None, str(error))

    return tuple((await servers.each(sorted(known), read)).values.values())


def speaks_tls(config: Mapping[str, str]) -> bool:
    """Whether the broker speaks TLS, by its options. Without TLS it would log a handshake as a bad frame."""
    return bool(config.get("tlsConfigFile")) or any(
        "tls" in key.lower() and "test" not in key.lower() and value.lower() in _TLS_VALUES
        for key, value in config.items()
    )


def ports_of(broker: BrokerFacts, config: dict[str, str]) -> list[tuple[str, str]]:
    """Kind and address of each further port: the fast port, and a DLedger member's own port or a master's HA port."""
    host, port = split_address(broker.addr)

    def number(key: str, default: int) -> int:
        text = config.get(key, "")
        return int(text) if text.lstrip("-").isdecimal() else default

    found = []
    fast = number("fastListenPort", 0)
    fast = port - 2 if fast < 0 else fast
    if 0 < fast < 65_536:
        found.append(("fast", format_address(host, fast)))
    if config.get("enableDLegerCommitLog") == "true":
        peers = dict(each.strip().partition("-")[::2] for each in config.get("dLegerPeers", "").split(";") if each)
        if own := peers.get(config.get("dLegerSelfId", "")):
            found.append(("DLedger", own))
        return found
    ha = number("haListenPort", 0) or port + 1
    if broker.is_master and ha < 65_536:
        found.append(("HA", format_address(config.get("brokerIP2") or host, ha)))
    return found


async def _answers(
    servers: Servers, keys: list[str], ask: Callable[[str], Awaitable[T]], unanswered: list[tuple[str, str]]
) -> dict[str, T]:
    answers = await servers.each(keys, ask)
    failed: dict[str, list[str]] = {}
    for key, error in answers.errors.items():
        is_gone = isinstance(error, BrokerError) and error.code in _GONE
        if not is_gone and not isinstance(error, RouteNotFound):
            failed.setdefault(explain(error), []).append(key)
    unanswered += [(few(keys), reason) for reason, keys in failed.items()]
    return answers.values


async def _group(admin: "Admin", group: str) -> list[GroupFacts]:
    stats = await admin.consume_stats(group)
    late = {queue.topic for queue, one in stats.offset_table.items() if one.broker_offset > one.consumer_offset}
    rows = undone_of(group, stats, {topic: await admin.topic_stats(topic) for topic in sorted(late)})
    try:
        members = len((await admin.consumer_connection(group)).connection_set)
    except BrokerError:  # no consumer is connected
        members = 0
    return [GroupFacts(group, row.topic, row.waiting, row.delay_ms, members) for row in rows]


async def _orders(servers: Servers, namesrv_addr: str, unanswered: list[tuple[str, str]]) -> list[OrderFacts]:
    """The records of ordered topics at a NameServer, and the recorded queues that the routes there lack."""
    found: list[OrderFacts] = []
    try:
        async with servers.admin_at(namesrv_addr) as admin:
            for topic, record in sorted((await admin.kv_list(NAMESPACE)).items())[:MAX_ORDERS]:
                try:
                    route = await admin.topic_route(topic)
                except RouteNotFound:
                    found.append(OrderFacts(namesrv_addr, topic, record, has_route=False))
                else:
                    is_in_route = bool(route.order_topic_conf)
                    found.append(
                        OrderFacts(namesrv_addr, topic, record, is_in_route=is_in_route, lacks=lacking(record, route))
                    )
    except SkylarkError as error:
        unanswered.append((f"ordered topics at {namesrv_addr}", explain(error)))
    return found


async def _wanted(servers: Servers, group: str) -> dict[Wanted, list[str]]:
    """The subscriptions of the group's members; members that choose their queues themselves are left out."""
    clients = [one.client_id for one in (await servers.admin.consumer_connection(group)).connection_set]
    found: dict[Wanted, list[str]] = {}
    if len(clients) < 2:
        return found
    # The subscriptions of members that do not answer stay unknown.
    infos = await ask_all(
        sorted(clients)[:MAX_MEMBERS], lambda client_id: servers.admin.consumer_running_info(group, client_id)
    )
    for client_id, info in infos.values.items():
        if info.properties.get("PROP_CONSUME_TYPE") != "CONSUME_ACTIVELY":
            found.setdefault(wanted_of(group, info.subscription_set), []).append(client_id)
    return found


async def _count(admin: "Admin", topic: str) -> int:
    stats = await admin.topic_stats(topic)
    return sum(one.max_offset - one.min_offset for one in stats.offset_table.values())
