"""Brokers register (103) and unregister (104).

A registration with very many topics is read in steps, and then put into the route table at once: readers see all of it
or nothing. Large registrations are processed one after another; small ones of other brokers are answered at once, as
long as these are few. The requests of one broker are processed in the order of their arrival; requests of a closed
connection are dropped.
Bounds: registrations that wait count in maxBufferedBytes; for the bounds of one registration see
requests/registrations.py.
Neighbours: handlers.py has the other requests; namesrv.py runs this.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from sys import intern
from typing import NamedTuple

from skylark.mqcommon.errors import ConnectionLost, ProtocolError, RequestRefused
from skylark.mqcommon.signal import Signal
from skylark.namesrv.handlers import is_skylark, unreadable
from skylark.namesrv.kvconfig import ORDER_TOPIC_CONFIG
from skylark.namesrv.registration import (
    DEFAULT_HEARTBEAT_TIMEOUT_MS,
    MAX_FILTER_SERVERS,
    Queues,
    Registration,
    RegistrationPart,
    advertised,
    check_broker,
    check_text,
    known_brokers,
    logical_queues,
    own_topics,
    queues_fault,
    topic_fault,
)
from skylark.namesrv.routes import Outcome, Registered
from skylark.namesrv.state import State
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, failure
from skylark.remoting.net.steps import Stepper, Steps, finish
from skylark.remoting.protocol import strict_cbor
from skylark.remoting.protocol.body import DataVersion, KVTable
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.requests.registrations import (
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    OnTopics,
    RegisterBrokerBody,
    body_crc32,
    decode_compressed,
    decode_json,
    names_crc,
    names_text,
    read_registration,
)
from skylark.remoting.protocol.requests.routes import RegisterBrokerRequestHeader, RegisterBrokerResponseHeader
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicQueueMappingInfo

logger = logging.getLogger(__name__)

# Registrations up to this size are read and applied in the turn in which they arrive: some ten milliseconds.
SMALL_BYTES = 128 * 1024
# And up to this many bytes within this time. After a restart a thousand brokers register in one turn of the loop, and
# clients would wait for all of them.
AT_ONCE_BYTES, AT_ONCE_MS = SMALL_BYTES, 20


class _Waiting(NamedTuple):
    channel: Channel
    request: Command
    broker_addr: str


class Registrations:
    """Handles 103 and 104 while `run` runs; ``changed`` is called after each request that had to wait."""

    def __init__(self, state: State, stepper: Stepper, changed: Callable[[], None]) -> None:
        self._state = state
        self._stepper = stepper
        self._changed = changed
        self._waiting: deque[_Waiting] = deque()
        # By broker address, how many requests wait or are being processed.
        self._by_broker: dict[str, int] = {}
        self._wake = Signal()
        # How many bytes were read in the turns in which they arrived, and since when they are counted.
        self._at_once_bytes = 0
        self._at_once_since_ms = 0

    def handlers(self) -> dict[int, Handler]:
        return {REGISTER_BROKER.code: self.handle, UNREGISTER_BROKER.code: self.handle}

    def handle(self, channel: Channel, request: Command) -> Command | None:
        """The answer, or None when it comes later."""
        ext = request.ext or {}
        broker_addr = str(ext.get("brokerAddr"))
        is_small = len(request.body) <= SMALL_BYTES and ext.get("compressed") in (None, False, "false")
        if is_small and broker_addr not in self._by_broker and self._may_be_at_once(len(request.body)):
            return finish(_steps(self._state, channel, request))
        if not channel.hold(len(request.body)):
            # The broker registers again later.
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "too much waits, see maxBufferedBytes; try again")
        self._waiting.append(_Waiting(channel, request, broker_addr))
        self._by_broker[broker_addr] = self._by_broker.get(broker_addr, 0) + 1
        self._wake.set()
        return None

    def _may_be_at_once(self, body_bytes: int) -> bool:
        now_ms = self._state.clock.monotonic_ms()
        if now_ms - self._at_once_since_ms >= AT_ONCE_MS:
            self._at_once_bytes, self._at_once_since_ms = 0, now_ms
        self._at_once_bytes += body_bytes
        return self._at_once_bytes <= AT_ONCE_BYTES

    async def run(self) -> None:
        """Process the requests that wait, until cancelled."""
        while True:
            while not self._waiting:
                await self._wake.wait()
            # The request stays at the head, and counts in `_by_broker`, until it is done: later requests of its broker
            # must not overtake it.
            channel, request, broker_addr = self._waiting[0]
            response: Command | None = None
            try:
                response = await self._stepper.run(_steps(self._state, channel, request), channel)
            except ConnectionLost:
                pass  # the connection that would get the answer has closed
            except Exception as error:
                response = failure(request, error)
            self._done(broker_addr)
            self._changed()
            if response is not None:
                channel.reply(request, response)

    def _done(self, broker_addr: str) -> None:
        done = self._waiting.popleft()
        done.channel.let_go(len(done.request.body))
        self._by_broker[broker_addr] -= 1
        if not self._by_broker[broker_addr]:
            del self._by_broker[broker_addr]


def _steps(state: State, channel: Channel, request: Command) -> Steps[Command]:
    if request.code == UNREGISTER_BROKER.code:
        return _unregister(state, request)
    return _register(state, channel, request)


def _unregister(state: State, request: Command) -> Steps[Command]:
    """104: a broker leaves."""
    header = UNREGISTER_BROKER.header(request)
    if state.routes.unregister(header.cluster_name, header.broker_name, header.broker_addr):
        logger.info(
            "broker unregistered: %s %s %d %s",
            header.cluster_name,
            header.broker_name,
            header.broker_id,
            header.broker_addr,
        )
    return request.respond()
    yield  # never reached; it makes this a generator, as `_register` is one


def _register(state: State, channel: Channel, request: Command) -> Steps[Command]:
    """103: a broker registers itself and its topics."""
    new = yield from _registration(request)
    result = state.routes.register(
        new,
        channel,
        state.clock.monotonic_ms(),
        delete_absent_topics=state.options.delete_topic_with_broker_registration,
    )
    return _answer(state, channel, request, new, result)


def _answer(
    state: State, channel: Channel, request: Command, new: Registration, result: Registered[Channel]
) -> Command:
    who = f"{new.cluster} {new.broker_name} {new.broker_id} {new.broker_addr}"
    if result.outcome is Outcome.WHOLE_NEEDED:
        return REGISTER_BROKER.answer(request, RegisterBrokerResponseHeader(takes_parts=True, whole_needed=True))
    if result.outcome is Outcome.INCREMENT_BEFORE_FULL:
        # The broker created a topic before it registered here; its full registration follows without being asked for.
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "register broker failed")
    if result.outcome is Outcome.STALE:
        # The broker is out of date but its request is valid, so this is answered as a success, as RocketMQ does.
        logger.warning("broker ignored: its id is held with a newer stateVersion: %s", who)
    if result.is_new:
        logger.info("broker registered: %s topics=%d from=%s", who, len(new.topics), channel.remote)
    if result.displaced is not None:
        state.displacements += 1
        logger.warning(
            "broker displaced %s, which had the same name and id: %s displacements=%d",
            result.displaced.broker_addr,
            who,
            state.displacements,
        )
    order = None
    # Skylark's brokers do not use the KV config, which may be large.
    if state.options.return_order_topic_config_to_broker and not is_skylark(request):
        order = state.kv_config.namespace(ORDER_TOPIC_CONFIG)
    header = RegisterBrokerResponseHeader(
        result.ha_server_addr, result.master_addr, result.rival_addr, takes_parts=is_skylark(request) or None
    )
    # The first part has the names, see broker/registration/registration.py.
    if is_skylark(request) and (new.part is None or new.part.number == 0):
        told = state.routes.known
        if told.crc(new.cluster) != names_crc({new.broker_name, *new.known_brokers}):
            header.known_brokers = names_text(told.names(new.cluster))
            header.gone_brokers = names_text(told.gone(new.cluster))
    if order is None:
        return REGISTER_BROKER.answer(request, header)
    answer = answer_with(REGISTER_BROKER, request, KVTable(dict(order)), channel.max_frame_bytes)
    answer.ext = header.to_ext()
    return answer


def _registration(request: Command) -> Steps[Registration]:
    header = REGISTER_BROKER.header(request)
    # The CRC is of the body as it was sent: a compressed body is checked before it is decompressed.
    if header.body_crc32 and body_crc32(request.body) != header.body_crc32:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    check_broker(header)
    topics = _Topics(header)
    try:
        body = yield from _body(request, bool(header.compressed), topics.add)
    except ProtocolError as error:
        raise unreadable(error) from None
    topics.add_logical(body.topic_config_serialize_wrapper.topic_queue_mapping_info_map)
    topics.log_faults()
    timeout_ms = header.heartbeat_timeout_millis
    return Registration(
        cluster=header.cluster_name,
        broker_name=header.broker_name,
        broker_id=header.broker_id,
        broker_addr=header.broker_addr,
        ha_server_addr=header.ha_server_addr,
        data_version=body.topic_config_serialize_wrapper.data_version,
        topics=topics.good,
        filter_servers=_filter_servers(body.filter_server_list),
        heartbeat_timeout_ms=timeout_ms if timeout_ms and timeout_ms > 0 else DEFAULT_HEARTBEAT_TIMEOUT_MS,
        enable_acting_master=header.enable_acting_master,
        part=_part(header, body),
        advertised=advertised(header),
        answers_probes=is_skylark(request),
        known_brokers=known_brokers(body.known_brokers or ()),
        is_drained=bool(body.is_drained),
    )


def _body(request: Command, is_compressed: bool, on_topics: OnTopics) -> Steps[RegisterBrokerBody]:
    if not request.body:
        return RegisterBrokerBody()
    if is_compressed:
        return (yield from decode_compressed(request.body, request.version, on_topics))
    if request.codec == CBOR:  # Skylark's, which sends small parts
        return (yield from read_registration(strict_cbor.loads(request.body), on_topics))
    return (yield from decode_json(request.body, on_topics))


class _Topics:
    """The queues of a broker's topics. Bad topics are left out, and one line logs them."""

    def __init__(self, header: RegisterBrokerRequestHeader) -> None:
        self._header = header
        self._own = own_topics(header.cluster_name, header.broker_name)
        self._shared: dict[Queues, Queues] = {}
        self._first_fault, self._faults = "", 0
        self.good: dict[str, Queues] = {}

    def add(self, topics: Mapping[str, TopicConfig]) -> None:
        """Add what routes need of ``topics``."""
        for name, one in topics.items():
            queues = Queues(
                one.read_queue_nums, one.write_queue_nums, one.perm, one.topic_sys_flag, created_ms=one.created_ms
            )
            fault = queues_fault(queues) if name in self._own else topic_fault(name, queues)
            # Topics with the same queues, and without a creation stamp, share one object.
            if fault is None:
                # The sets that have a topic share its name, too.
                stamped = queues.created_ms is not None
                self.good[intern(name)] = queues if stamped else self._shared.setdefault(queues, queues)
            else:
                self._left_out(name, fault)

    def add_logical(self, infos: Mapping[str, TopicQueueMappingInfo]) -> None:
        """Add the broker's parts in static topics."""
        for name, info in infos.items():
            queues = self.good.get(name)
            if queues is None:
                continue
            logical = logical_queues(info)
            if logical is not None:
                self.good[name] = queues._replace(logical=logical)
            else:
                # Without its mapping clients would take the broker's own queues for the logical ones.
                del self.good[name]
                self._left_out(name, "its mapping of logical queues cannot be used")

    def _left_out(self, name: str, fault: str) -> None:
        self._faults += 1
        self._first_fault = self._first_fault or f"{name[:300]!r}: {fault}"

    def log_faults(self) -> None:
        if self._faults:
            logger.warning(
                "%d topics of broker %s at %s left out, the first is %s",
                self._faults,
                self._header.broker_name,
                self._header.broker_addr,
                self._first_fault,
            )


def _filter_servers(addrs: list[str]) -> tuple[str, ...]:
    if len(addrs) > MAX_FILTER_SERVERS:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{len(addrs)} filter servers, at most {MAX_FILTER_SERVERS}")
    for addr in addrs:
        check_text("the address of a filter server", addr)
    return tuple(addrs)


def _part(header: RegisterBrokerRequestHeader, body: RegisterBrokerBody) -> RegistrationPart | None:
    if header.part is None:
        return None
    base = None
    if header.base_timestamp is not None and header.base_counter is not None:
        base = DataVersion(header.base_state_version or 0, header.base_timestamp, header.base_counter)
    return RegistrationPart(header.part, bool(header.is_last_part), base, tuple(body.removed_topics or ()))
