"""What brokers and clients ask of a NameServer, as plain functions: request in, answer out.

``build_handlers`` is the table; a function gets the State, the Channel and the request. Texts and codes of
refusals are RocketMQ's. Number keys in bodies are quoted for who wants that (``dialect_for``).
Neighbours: routes.py thinks; config_handlers.py has the requests that write files.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from mqcommon.errors import ProtocolError, RequestRefused
from namesrv import config_handlers
from namesrv.checks import MAX_FILTER_SERVERS, Numbers, check_broker, check_text, faults_of, topic_fault
from namesrv.kvconfig import ORDER_TOPIC_CONFIG
from namesrv.parts import Part
from namesrv.routes import DEFAULT_HEARTBEAT_TIMEOUT_MS, Outcome, Registration
from namesrv.state import State
from remoting.net.answers import answer_steps, answer_with
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.net.steps import NAMES, StepHandler, Steps, slices, sorted_steps
from remoting.protocol.bodies import Body, dialect_for, encode_body
from remoting.protocol.bodies.cluster import BrokerMemberGroup, MemberGroupAnswer
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.dialect import MAX_RELAXED_BYTES
from remoting.protocol.bodies.kvtable import KVTable
from remoting.protocol.bodies.limited import SMALL, BodyLimits, decode_limited
from remoting.protocol.bodies.register import RegisterBrokerBody, body_crc32, decode_compressed
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.bodies.topic import TopicConfig, TopicList
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import CBOR, OFFER_FIELD, Command
from remoting.protocol.frame import MAX_FRAME_BYTES
from remoting.protocol.headers.members import BrokerHeartbeatRequestHeader, GetBrokerMemberGroupRequestHeader
from remoting.protocol.headers.namesrv import (
    AddWritePermResponseHeader,
    BrokerNameRequestHeader,
    BrokerRequestHeader,
    ClusterRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    WipeWritePermResponseHeader,
)
from remoting.protocol.headers.topics import TopicRequestHeader

logger = logging.getLogger(__name__)

# topicSysFlag bits of RocketMQ's units (several clusters that mirror each other)
FLAG_UNIT = 1
FLAG_UNIT_SUB = 2

# A broker with very many topics is taken; what is not standard JSON in it are the queues of static topics.
REGISTRATION = BodyLimits(MAX_FRAME_BYTES, None, MAX_RELAXED_BYTES)

_NO_ROUTE = (
    "No topic route info in name server for the topic: {}\n"
    "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
)

B = TypeVar("B", bound=Body)
StateHandler = Callable[[State, Channel, Command], Command]


def build_handlers(state: State) -> dict[int, Handler]:
    """Code to handler, for all requests that need not wait for the disk."""
    table: dict[int, StateHandler] = {
        RequestCode.GET_KV_CONFIG: config_handlers.get_kv,
        RequestCode.REGISTER_BROKER: register_broker,
        RequestCode.UNREGISTER_BROKER: unregister_broker,
        RequestCode.GET_ROUTEINFO_BY_TOPIC: get_route,
        RequestCode.GET_BROKER_CLUSTER_INFO: get_cluster_info,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_write_perm,
        RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV: register_topic,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: get_system_topics,
        RequestCode.GET_NAMESRV_CONFIG: config_handlers.get_config,
        RequestCode.QUERY_DATA_VERSION: query_data_version,
        RequestCode.ADD_WRITE_PERM_OF_BROKER: add_write_perm,
        RequestCode.GET_BROKER_MEMBER_GROUP: get_member_group,
        RequestCode.BROKER_HEARTBEAT: heartbeat,
    }
    return {code: partial(handler, state) for code, handler in table.items()}


def build_step_handlers(state: State) -> dict[int, StepHandler]:
    """Code to handler, for what grows with the number of topics or of keys."""
    table: dict[int, Callable[[State, Channel, Command], Steps[Command]]] = {
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: get_all_topics,
        RequestCode.GET_KVLIST_BY_NAMESPACE: config_handlers.get_kv_namespace,
        RequestCode.GET_TOPICS_BY_CLUSTER: get_topics_of_cluster,
        RequestCode.GET_UNIT_TOPIC_LIST: _topics_by_flag(lambda flag: bool(flag & FLAG_UNIT)),
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _topics_by_flag(lambda flag: bool(flag & FLAG_UNIT_SUB)),
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _topics_by_flag(
            lambda flag: bool(flag & FLAG_UNIT_SUB) and not flag & FLAG_UNIT
        ),
    }
    return {code: partial(handler, state) for code, handler in table.items()}


# --- brokers


def register_broker(state: State, channel: Channel, request: Command) -> Command:
    """103: a broker tells who it is and what topics it has."""
    new = _registration(request)
    result = state.routes.register(
        new,
        channel,
        state.clock.monotonic_ms(),
        delete_absent_topics=state.options.delete_topic_with_broker_registration,
    )
    who = f"{new.cluster} {new.broker_name} {new.broker_id} {new.broker_addr}"
    if result.outcome is Outcome.WHOLE_NEEDED:
        return request.respond(ext=RegisterBrokerResponseHeader(takes_parts=True, whole_needed=True).to_ext())
    if result.outcome is Outcome.INCREMENT_BEFORE_FULL:
        # a broker that created a topic before it registered with us: the full registration follows by itself
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "register broker failed")
    if result.outcome is Outcome.STALE:
        # answered as a success, as RocketMQ does: the broker is out of date, the request was not
        logger.warning("broker ignored: its id is held with a newer stateVersion: %s", who)
    if result.is_new:
        logger.info("broker registered: %s topics=%d from=%s", who, len(new.topics), channel.remote)
    if result.displaced is not None:
        logger.warning("broker displaced %s, which had the same name and id: %s", result.displaced.broker_addr, who)
    order = None
    # Skylark's brokers have no use for it, and it may be large.
    if state.options.return_order_topic_config_to_broker and not _is_skylark(request):
        order = state.kv_config.namespace(ORDER_TOPIC_CONFIG)
    header = RegisterBrokerResponseHeader(
        result.ha_server_addr, result.master_addr, result.rival_addr, takes_parts=_is_skylark(request) or None
    )
    answer = request.respond() if order is None else answer_with(request, KVTable(dict(order)), channel.max_frame_bytes)
    answer.ext = header.to_ext()
    return answer


def _registration(request: Command) -> Registration:
    header = RegisterBrokerRequestHeader.from_ext(request.ext)
    if header.body_crc32 and body_crc32(request.body) != header.body_crc32:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    check_broker(header)
    if header.compressed and request.body:
        try:
            body = decode_compressed(request.body, request.version)
        except ProtocolError as error:
            raise _unreadable(error) from None
    else:
        body = read_body(RegisterBrokerBody, request, REGISTRATION)
    topics = body.topic_config_serialize_wrapper
    _leave_out_bad_topics(header, topics.topic_config_table)
    timeout_ms = header.heartbeat_timeout_millis
    return Registration(
        cluster=header.cluster_name,
        broker_name=header.broker_name,
        broker_id=header.broker_id,
        broker_addr=header.broker_addr,
        ha_server_addr=header.ha_server_addr,
        data_version=topics.data_version,
        topics=topics.topic_config_table,
        filter_servers=_filter_servers(body.filter_server_list),
        heartbeat_timeout_ms=timeout_ms if timeout_ms and timeout_ms > 0 else DEFAULT_HEARTBEAT_TIMEOUT_MS,
        enable_acting_master=header.enable_acting_master,
        part=_part(header, body),
    )


def _leave_out_bad_topics(header: RegisterBrokerRequestHeader, table: dict[str, TopicConfig]) -> None:
    numbers = {name: Numbers(one.read_queue_nums, one.write_queue_nums, one.perm) for name, one in table.items()}
    faults = faults_of(numbers, header.cluster_name, header.broker_name)
    for name in faults:
        del table[name]
    if faults:
        name, fault = next(iter(faults.items()))
        logger.warning(
            "%d topics of broker %s at %s left out, the first is %.300r: %s",
            len(faults), header.broker_name, header.broker_addr, name, fault,
        )  # fmt: skip


def _filter_servers(addrs: list[str]) -> tuple[str, ...]:
    if len(addrs) > MAX_FILTER_SERVERS:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{len(addrs)} filter servers, at most {MAX_FILTER_SERVERS}")
    for addr in addrs:
        check_text("the address of a filter server", addr)
    return tuple(addrs)


def _part(header: RegisterBrokerRequestHeader, body: RegisterBrokerBody) -> Part | None:
    if header.part is None:
        return None
    base = None
    if header.base_timestamp is not None and header.base_counter is not None:
        base = DataVersion(header.base_state_version or 0, header.base_timestamp, header.base_counter)
    return Part(header.part, bool(header.is_last_part), base, tuple(body.removed_topics or ()))


def _is_skylark(request: Command) -> bool:
    """Whether the peer is one of ours: others are told nothing that RocketMQ's NameServers do not say."""
    return request.codec == CBOR or bool(request.ext and OFFER_FIELD in request.ext)


def unregister_broker(state: State, channel: Channel, request: Command) -> Command:
    """104: a broker says good-bye."""
    header = BrokerRequestHeader.from_ext(request.ext)
    if state.routes.unregister(header.cluster_name, header.broker_name, header.broker_addr):
        logger.info(
            "broker unregistered: %s %s %d %s",
            header.cluster_name,
            header.broker_name,
            header.broker_id,
            header.broker_addr,
        )
    return request.respond()


def query_data_version(state: State, channel: Channel, request: Command) -> Command:
    """322: is what you know of me still true? Also a sign of life."""
    header = BrokerRequestHeader.from_ext(request.ext)
    told = read_body(DataVersion, request)
    known = state.routes.touch(header.cluster_name, header.broker_addr, channel, state.clock.monotonic_ms())
    return request.respond(
        ext=QueryDataVersionResponseHeader(known != told, _is_skylark(request) or None).to_ext(),
        body=b"" if known is None else encode_body(known, dialect_for(request)),
    )


def heartbeat(state: State, channel: Channel, request: Command) -> Command:
    """904: the least sign of life, each second from brokers that may have acting masters."""
    header = BrokerHeartbeatRequestHeader.from_ext(request.ext)
    if state.routes.touch(header.cluster_name, header.broker_addr, channel, state.clock.monotonic_ms()) is None:
        # RocketMQ says nothing, and its brokers do not wait for an answer; ours then register again at once
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"broker {header.broker_addr} is not registered")
    return request.respond()


def get_member_group(state: State, channel: Channel, request: Command) -> Command:
    """901: who of this broker set lives; nobody in a set that is not known."""
    header = GetBrokerMemberGroupRequestHeader.from_ext(request.ext)
    known = state.routes.members(header.broker_name)
    group = BrokerMemberGroup(known.broker_addrs if known else {}, header.broker_name, header.cluster_name)
    return answer_with(request, MemberGroupAnswer(group), channel.max_frame_bytes)


# --- routes


def get_route(state: State, channel: Channel, request: Command) -> Command:
    """105: where is this topic?"""
    header = GetRouteInfoRequestHeader.from_ext(request.ext)
    if state.is_waiting_for_brokers:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "name server not ready")
    route = state.routes.route(header.topic, acting_master=state.options.support_acting_master)
    if route is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, _NO_ROUTE.format(header.topic))
    if state.options.order_message_enable:
        route.order_topic_conf = state.kv_config.get(ORDER_TOPIC_CONFIG, header.topic)
    return answer_with(request, route, channel.max_frame_bytes)


def get_cluster_info(state: State, channel: Channel, request: Command) -> Command:
    """106: all brokers of all clusters."""
    info = state.routes.cluster_info()
    info.contested = state.routes.rivals.contested(state.clock.monotonic_ms()) or None
    return answer_with(request, info, channel.max_frame_bytes)


# --- topics


def get_all_topics(state: State, channel: Channel, request: Command) -> Steps[Command]:
    """206."""
    _check_allowed(state.options.enable_all_topic_list)
    return (yield from _topic_list(channel, request, state.routes.topics()))


def get_topics_of_cluster(state: State, channel: Channel, request: Command) -> Steps[Command]:
    """224."""
    _check_allowed(state.options.enable_topic_list)
    header = ClusterRequestHeader.from_ext(request.ext)
    return (yield from _topic_list(channel, request, state.routes.topics_of_cluster(header.cluster)))


def get_system_topics(state: State, channel: Channel, request: Command) -> Command:
    """304: the topics named after clusters and brokers, and a broker that knows its other system topics."""
    _check_allowed(state.options.enable_topic_list)
    names: dict[str, None] = {}
    broker_addr = None
    info = state.routes.cluster_info()
    for cluster, broker_names in info.cluster_addr_table.items():
        names.update(dict.fromkeys((cluster, *broker_names)))
    for data in info.broker_addr_table.values():
        broker_addr = broker_addr or data.broker_addrs[min(data.broker_addrs)]
    return answer_with(request, TopicList(list(names), broker_addr), channel.max_frame_bytes)


def _topics_by_flag(predicate: Callable[[int], bool]) -> Callable[[State, Channel, Command], Steps[Command]]:
    """311, 312, 313."""

    def handler(state: State, channel: Channel, request: Command) -> Steps[Command]:
        _check_allowed(state.options.enable_topic_list)
        found: list[str] = []
        for part in slices(state.routes.topics(), NAMES):
            found += state.routes.topics_where(predicate, part)
            yield None
        return (yield from _topic_list(channel, request, found))

    return handler


def delete_topic(state: State, channel: Channel, request: Command) -> Command:
    """216."""
    header = DeleteTopicFromNamesrvRequestHeader.from_ext(request.ext)
    state.routes.delete_topic(header.topic, header.cluster_name or None)
    logger.info("topic deleted: %s cluster=%s by=%s", header.topic, header.cluster_name or "all", channel.remote)
    return request.respond()


def register_topic(state: State, channel: Channel, request: Command) -> Command:
    """217: queues of a topic, told by someone else than their brokers."""
    header = TopicRequestHeader.from_ext(request.ext)
    queues = read_body(TopicRouteData, request).queue_datas
    for queue in queues:
        fault = topic_fault(header.topic, Numbers(queue.read_queue_nums, queue.write_queue_nums, queue.perm))
        if fault is not None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, fault)
    if queues and not state.routes.put_topic(header.topic, queues):
        # answered as a success, as RocketMQ does
        logger.warning("topic ignored: it names a broker that is not known here: %s", header.topic)
    return request.respond()


def wipe_write_perm(state: State, channel: Channel, request: Command) -> Command:
    """205."""
    name = BrokerNameRequestHeader.from_ext(request.ext).broker_name
    count = state.routes.wipe_write_perm(name)
    logger.info("write permission wiped: %s topics=%d by=%s", name, count, channel.remote)
    return request.respond(ext=WipeWritePermResponseHeader(count).to_ext())


def add_write_perm(state: State, channel: Channel, request: Command) -> Command:
    """327."""
    name = BrokerNameRequestHeader.from_ext(request.ext).broker_name
    count = state.routes.add_write_perm(name)
    logger.info("write permission added: %s topics=%d by=%s", name, count, channel.remote)
    return request.respond(ext=AddWritePermResponseHeader(count).to_ext())


# --- inside


def read_body(cls: type[B], request: Command, limits: BodyLimits = SMALL) -> B:
    """The body of a request, an empty one when it has none; what is no such body, or over its limits, is refused."""
    if not request.body:
        return cls()
    try:
        return decode_limited(cls, request.body, request.codec, limits)
    except ProtocolError as error:
        raise _unreadable(error) from None


def _unreadable(error: ProtocolError) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body cannot be read: {error}")


def _topic_list(channel: Channel, request: Command, topics: list[str]) -> Steps[Command]:
    """``topics`` sorted; RocketMQ's lists have no order."""
    names = yield from sorted_steps(topics)
    return (yield from answer_steps(request, TopicList(names), channel.max_frame_bytes))


def _check_allowed(is_enabled: bool) -> None:
    if not is_enabled:
        raise RequestRefused(ResponseCode.NO_PERMISSION, "disable")
