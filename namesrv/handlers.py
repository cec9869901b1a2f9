"""Handlers for the requests of brokers and clients, as plain functions: request in, answer out.

``build_handlers`` is the table; a function gets the State, the Channel and the request. Texts and codes of
refusals are RocketMQ's. Number keys in bodies are quoted for peers that want that (``dialect_for``).
Neighbours: routes.py decides; registration_handlers.py has 103 and 104, config_handlers.py requests that write files.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from skylark.mqcommon.errors import ProtocolError, RequestRefused
from skylark.namesrv import config_handlers
from skylark.namesrv.kvconfig import ORDER_TOPIC_CONFIG
from skylark.namesrv.registration import Queues, Unchanged, topic_fault
from skylark.namesrv.route_answers import Form
from skylark.namesrv.state import State
from skylark.remoting.net.answers import answer_steps, answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.net.steps import NAMES, StepHandler, Steps, slices, sorted_steps
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, OFFER_FIELD, Command
from skylark.remoting.protocol.dialect import dialect_for, encode_body
from skylark.remoting.protocol.request import Request
from skylark.remoting.protocol.requests.registrations import (
    BROKER_HEARTBEAT,
    GET_BROKER_MEMBER_GROUP,
    QUERY_DATA_VERSION,
    names_text,
)
from skylark.remoting.protocol.requests.routes import (
    ADD_WRITE_PERM_OF_BROKER,
    DELETE_TOPIC_IN_NAMESRV,
    FORGET_BROKER,
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    GET_BROKER_CLUSTER_INFO,
    GET_HAS_UNIT_SUB_TOPIC_LIST,
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    GET_KV_CONFIG,
    GET_KVLIST_BY_NAMESPACE,
    GET_NAMESRV_CONFIG,
    GET_ROUTEINFO_BY_TOPIC,
    GET_SYSTEM_TOPIC_LIST_FROM_NS,
    GET_TOPICS_BY_CLUSTER,
    GET_UNIT_TOPIC_LIST,
    REGISTER_TOPIC_IN_NAMESRV,
    TOPIC_IS_AWAY,
    WIPE_WRITE_PERM_OF_BROKER,
    AddWritePermResponseHeader,
    BrokerMemberGroup,
    MemberGroupAnswer,
    QueryDataVersionResponseHeader,
    WipeWritePermResponseHeader,
)
from skylark.remoting.protocol.requests.topics import TOPIC_UNIT, TOPIC_UNIT_SUB, TopicList

logger = logging.getLogger(__name__)

_NO_ROUTE = (
    "No topic route info in name server for the topic: {}\n"
    "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
)

# Limits of a 322 that is kept: its version and its fields are shorter; it has four fields, or eight with a signature.
_MAX_QUESTION_BYTES = 256
_MAX_FIELDS = 10

TopicsRequest = Request[Any, Any, Any, TopicList]
StateHandler = Callable[[State, Channel, Command], Command]


def build_handlers(state: State) -> dict[int, Handler]:
    """Code to handler, for all requests that need not wait for the disk."""
    table: dict[int, StateHandler] = {
        GET_KV_CONFIG.code: config_handlers.get_kv,
        GET_ROUTEINFO_BY_TOPIC.code: get_route,
        GET_BROKER_CLUSTER_INFO.code: get_cluster_info,
        DELETE_TOPIC_IN_NAMESRV.code: delete_topic,
        REGISTER_TOPIC_IN_NAMESRV.code: register_topic,
        GET_SYSTEM_TOPIC_LIST_FROM_NS.code: get_system_topics,
        GET_NAMESRV_CONFIG.code: config_handlers.get_config,
        QUERY_DATA_VERSION.code: query_data_version,
        GET_BROKER_MEMBER_GROUP.code: get_member_group,
        BROKER_HEARTBEAT.code: heartbeat,
        FORGET_BROKER.code: forget_broker,
    }
    return {code: partial(handler, state) for code, handler in table.items()}


def build_step_handlers(state: State) -> dict[int, StepHandler]:
    """Code to handler, for requests whose work grows with the number of topics or keys."""
    table: dict[int, Callable[[State, Channel, Command], Steps[Command]]] = {
        WIPE_WRITE_PERM_OF_BROKER.code: wipe_write_perm,
        ADD_WRITE_PERM_OF_BROKER.code: add_write_perm,
        GET_ALL_TOPIC_LIST_FROM_NAMESERVER.code: get_all_topics,
        GET_KVLIST_BY_NAMESPACE.code: config_handlers.get_kv_namespace,
        GET_TOPICS_BY_CLUSTER.code: get_topics_of_cluster,
        GET_UNIT_TOPIC_LIST.code: _topics_by_flag(GET_UNIT_TOPIC_LIST, lambda flag: bool(flag & TOPIC_UNIT)),
        GET_HAS_UNIT_SUB_TOPIC_LIST.code: _topics_by_flag(
            GET_HAS_UNIT_SUB_TOPIC_LIST, lambda flag: bool(flag & TOPIC_UNIT_SUB)
        ),
        GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST.code: _topics_by_flag(
            GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, lambda flag: bool(flag & TOPIC_UNIT_SUB) and not flag & TOPIC_UNIT
        ),
    }
    return {code: partial(handler, state) for code, handler in table.items()}


# --- brokers


def query_data_version(state: State, channel: Channel, request: Command) -> Command:
    """322: a broker asks whether its registration is still up to date. Counts as a heartbeat.

    A broker asks the same in each heartbeat while its topics do not change: only the first such question is decoded.
    The broker must register again, too, while it may have topics that an administrator deleted here only.
    """
    ext, now_ms = request.ext or {}, state.clock.monotonic_ms()
    addr = ext.get("brokerAddr")
    live = state.routes.at(addr) if type(addr) is str else None
    last = None if live is None else live.unchanged
    is_known = last is not None and last.question == request.body and last.ext == ext
    if live is not None and last is not None and is_known and last.dialect is dialect_for(request):
        # The heartbeat also moves the broker to this connection: when the former connection ends, the broker stays.
        live.last_heard_ms, live.connection = now_ms, channel
        return request.respond(ext=dict(last.answer_ext), body=last.answer)
    header = QUERY_DATA_VERSION.header(request)
    live = state.routes.touch(header.cluster_name, header.broker_addr, channel, now_ms)
    told = QUERY_DATA_VERSION.body(request) if request.body else DataVersion()
    dialect = dialect_for(request)
    body = b"" if live is None else encode_body(live.data_version, dialect)
    is_changed = live is None or bool(live.deleted_here) or live.data_version != told
    answer = QueryDataVersionResponseHeader(is_changed, is_skylark(request) or None)
    cluster, known = header.cluster_name, state.routes.known
    # A broker keeps the names of its cluster; see known_brokers.py.
    is_told = live is not None and header.known_crc not in (None, known.crc(cluster))
    if is_told:
        answer.known_brokers, answer.gone_brokers = names_text(known.names(cluster)), names_text(known.gone(cluster))
    fields = answer.to_ext()
    if live is not None and not is_changed and not is_told and _is_short(ext, request.body):
        live.unchanged = Unchanged(ext, request.body, dialect, fields, body)
    return request.respond(ext=fields, body=body)


def _is_short(ext: Mapping[str, Any], body: bytes) -> bool:
    """Whether a 322 is as short as brokers send it; a longer request is not kept."""
    if len(body) > _MAX_QUESTION_BYTES or len(ext) > _MAX_FIELDS:
        return False
    return all(type(value) is not str or len(value) <= _MAX_QUESTION_BYTES for value in ext.values())


def heartbeat(state: State, channel: Channel, request: Command) -> Command:
    """904: a heartbeat; brokers that may have acting masters send it every second."""
    header = BROKER_HEARTBEAT.header(request)
    if state.routes.touch(header.cluster_name, header.broker_addr, channel, state.clock.monotonic_ms()) is None:
        # RocketMQ's NameServer does not answer, and its brokers do not wait. Skylark's brokers register again at once.
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"broker {header.broker_addr} is not registered")
    return request.respond()


def get_member_group(state: State, channel: Channel, request: Command) -> Command:
    """901: the live members of a broker set; none for an unknown set."""
    header = GET_BROKER_MEMBER_GROUP.header(request)
    known = state.routes.members(header.broker_name)
    group = BrokerMemberGroup(known.broker_addrs if known else {}, header.broker_name, header.cluster_name)
    return answer_with(GET_BROKER_MEMBER_GROUP, request, MemberGroupAnswer(group), channel.max_frame_bytes)


# --- routes


def get_route(state: State, channel: Channel, request: Command) -> Command:
    """105: the route of a topic."""
    header = GET_ROUTEINFO_BY_TOPIC.header(request)
    # An error and not "no such topic": clients believe that answer, and would drop good routes.
    if state.is_waiting_for_brokers:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "name server not ready")
    options, routes, topic = state.options, state.routes, header.topic
    order_conf = state.kv_config.get(ORDER_TOPIC_CONFIG, topic) if options.order_message_enable else None
    form = Form(dialect_for(request), options.support_acting_master)
    choice = routes.advertised.choice(channel.remote)
    is_for_all = order_conf is None and choice is None
    if is_for_all and (known := routes.answers.get(topic, form)) is not None:
        return request.respond(body=known)
    route = routes.route(topic, acting_master=options.support_acting_master)
    if route is None:
        away = ", ".join(one.broker_name for one in routes.known.missing_in(topic, (), ()))
        text = _NO_ROUTE.format(topic)
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"{text}\n{TOPIC_IS_AWAY}{away}" if away else text)
    route.order_topic_conf = order_conf
    if choice is not None:
        choice.in_route(route)
    answer = answer_with(GET_ROUTEINFO_BY_TOPIC, request, route, channel.max_frame_bytes)
    if is_for_all and answer.remark is None:
        routes.answers.put(topic, form, answer.body)
    return answer


def get_cluster_info(state: State, channel: Channel, request: Command) -> Command:
    """106: all brokers of all clusters."""
    info = state.routes.cluster_info()
    choice = state.routes.advertised.choice(channel.remote)
    if choice is not None:
        choice.in_brokers(info.broker_addr_table.values())
    info.contested = state.routes.rivals.contested(state.clock.monotonic_ms()) or None
    info.absent_brokers = state.routes.known.absent() or None
    return answer_with(GET_BROKER_CLUSTER_INFO, request, info, channel.max_frame_bytes)


def forget_broker(state: State, channel: Channel, request: Command) -> Command:
    """7106: a broker that is away is gone for good, so its queues are not missing in routes any more."""
    name = FORGET_BROKER.header(request).broker_name
    state.routes.forget_broker(name)
    logger.warning("broker forgotten: %s by=%s", name, channel.remote)
    return request.respond()


# --- topics


def get_all_topics(state: State, channel: Channel, request: Command) -> Steps[Command]:
    """206: the names of all topics."""
    _check_allowed(state.options.enable_all_topic_list)
    away = state.routes.known.topics_away() if is_skylark(request) else ()
    what = GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    return (yield from _topic_list(what, channel, request, state.routes.tables(), away))


def get_topics_of_cluster(state: State, channel: Channel, request: Command) -> Steps[Command]:
    """224: the names of the topics that a cluster's brokers have."""
    _check_allowed(state.options.enable_topic_list)
    tables = state.routes.tables(GET_TOPICS_BY_CLUSTER.header(request).cluster)
    return (yield from _topic_list(GET_TOPICS_BY_CLUSTER, channel, request, tables))


def get_system_topics(state: State, channel: Channel, request: Command) -> Command:
    """304: the topics named after clusters and brokers, and a broker to ask for the other system topics."""
    _check_allowed(state.options.enable_topic_list)
    names: dict[str, None] = {}
    broker_addr = None
    info = state.routes.cluster_info()
    for cluster, broker_names in info.cluster_addr_table.items():
        names.update(dict.fromkeys((cluster, *broker_names)))
    for data in info.broker_addr_table.values():
        broker_addr = broker_addr or data.broker_addrs[min(data.broker_addrs)]
    return answer_with(
        GET_SYSTEM_TOPIC_LIST_FROM_NS, request, TopicList(list(names), broker_addr), channel.max_frame_bytes
    )


def _topics_by_flag(
    what: TopicsRequest, predicate: Callable[[int], bool]
) -> Callable[[State, Channel, Command], Steps[Command]]:
    """The handler of 311, 312 or 313: topics whose flags fulfil ``predicate``."""

    def handler(state: State, channel: Channel, request: Command) -> Steps[Command]:
        _check_allowed(state.options.enable_topic_list)
        found: list[list[str]] = []
        for table in state.routes.tables():
            for part in slices(list(table), NAMES):  # names only: items() would make many tuples
                found.append([topic for topic in part if topic in table and predicate(table[topic].topic_sys_flag)])
                yield None
        return (yield from _topic_list(what, channel, request, found))

    return handler


def delete_topic(state: State, channel: Channel, request: Command) -> Command:
    """216: forget a topic, in all clusters or in one."""
    header = DELETE_TOPIC_IN_NAMESRV.header(request)
    state.routes.delete_topic(header.topic, header.cluster_name or None)
    logger.info("topic deleted: %s cluster=%s by=%s", header.topic, header.cluster_name or "all", channel.remote)
    return request.respond()


def register_topic(state: State, channel: Channel, request: Command) -> Command:
    """217: queues of a topic, registered by someone other than their brokers."""
    header = REGISTER_TOPIC_IN_NAMESRV.header(request)
    queues = REGISTER_TOPIC_IN_NAMESRV.body(request).queue_datas if request.body else []
    for queue in queues:
        fault = topic_fault(header.topic, Queues(queue.read_queue_nums, queue.write_queue_nums, queue.perm))
        if fault is not None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, fault)
    if queues and not state.routes.put_topic(header.topic, queues):
        # answered as a success, as RocketMQ does
        logger.warning("topic ignored: it names a broker that is not known here: %s", header.topic)
    return request.respond()


def wipe_write_perm(state: State, channel: Channel, request: Command) -> Steps[Command]:
    """205: let no client send to a broker's topics."""
    name = WIPE_WRITE_PERM_OF_BROKER.header(request).broker_name
    count = yield from state.routes.wipe_write_perm(name)
    logger.info("write permission wiped: %s topics=%d by=%s", name, count, channel.remote)
    return WIPE_WRITE_PERM_OF_BROKER.answer(request, WipeWritePermResponseHeader(count))


def add_write_perm(state: State, channel: Channel, request: Command) -> Steps[Command]:
    """327: let clients send to a broker's topics again."""
    name = ADD_WRITE_PERM_OF_BROKER.header(request).broker_name
    count = yield from state.routes.add_write_perm(name)
    logger.info("write permission added: %s topics=%d by=%s", name, count, channel.remote)
    return ADD_WRITE_PERM_OF_BROKER.answer(request, AddWritePermResponseHeader(count))


# --- inside


def is_skylark(request: Command) -> bool:
    """Whether the peer is a Skylark. Other peers get only the fields that RocketMQ's NameServers send."""
    return request.codec == CBOR or bool(request.ext and OFFER_FIELD in request.ext)


def unreadable(error: ProtocolError) -> RequestRefused:
    """The refusal of a request whose body cannot be decoded."""
    return RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body cannot be read: {error}")


def _topic_list(
    what: TopicsRequest,
    channel: Channel,
    request: Command,
    tables: Iterable[Iterable[str]],
    away: Iterable[Iterable[str]] = (),
) -> Steps[Command]:
    """The topics of all ``tables``, sorted; and in a list of their own the topics of ``away`` that are in no table.

    RocketMQ's lists have no order.
    """
    found: set[str] = set()
    for table in tables:
        found.update(table)
        yield None
    absent: set[str] = set()
    for table in away:
        absent.update(topic for topic in table if topic not in found)
        yield None
    names = yield from sorted_steps(found)
    absent_names = yield from sorted_steps(absent)
    answer = TopicList(names, absent_topics=absent_names or None)
    return (yield from answer_steps(what, request, answer, channel.max_frame_bytes))


def _check_allowed(is_enabled: bool) -> None:
    if not is_enabled:
        raise RequestRefused(ResponseCode.NO_PERMISSION, "disable")
