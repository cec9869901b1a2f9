"""Requests in a broker set: what its members ask each other (60, 61, 402, 905, 906), and what a slave refuses.

A Skylark slave has all data about timers in the log. Without an answer to 60 and 61 a RocketMQ slave logs an error
every few seconds, and a RocketMQ master with enableSlaveActingMaster does not come online.
Neighbours: registration/heartbeats.py (asks NameServers whether 905 is true), known_master.py, watch_metadata.py
(7100), stats.py (907, 908); remoting/protocol/requests says what a slave answers.
"""

import logging
import struct
from collections.abc import Callable
from typing import NamedTuple

from skylark.broker.identity import Identity
from skylark.broker.meta.request_modes import RequestModes
from skylark.broker.part import Hook, Part
from skylark.broker.replication.known_master import KnownMaster, MasterAddress
from skylark.broker.replication.role import RoleMachine
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.names import check_topic, check_topic_is_users
from skylark.remoting.net.answers import answer_steps, answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.net.steps import StepHandler, Steps
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.request import SlaveAnswer
from skylark.remoting.protocol.requests.groups import MessageRequestModes
from skylark.remoting.protocol.requests.registrations import NOTIFY_MIN_BROKER_ID_CHANGE
from skylark.remoting.protocol.requests.replication import (
    EXCHANGE_BROKER_HA_INFO,
    GET_ALL_MESSAGE_REQUEST_MODE,
    GET_TIMER_CHECK_POINT,
    GET_TIMER_METRICS,
    ExchangeHAInfoHeader,
    TimerMetrics,
)
from skylark.remoting.protocol.requests.table import BY_CODE
from skylark.remoting.protocol.requests.topics import DELETE_TOPIC_IN_BROKER

logger = logging.getLogger(__name__)


class MemberHandlers(Part):
    """The handlers of a broker with enableSlaveActingMaster."""

    def __init__(
        self,
        role: RoleMachine,
        identity: Identity,
        store: MessageStore,
        master: KnownMaster,
        ask_soon: Callable[[], None],
    ) -> None:
        self._role = role
        self._identity = identity
        self._store = store
        self._master = master
        self._ask_soon = ask_soon

    def handlers(self) -> dict[int, Handler]:
        return {
            NOTIFY_MIN_BROKER_ID_CHANGE.code: self.min_broker_changed,
            EXCHANGE_BROKER_HA_INFO.code: self.exchange_ha_info,
        }

    def min_broker_changed(self, channel: Channel, request: Command) -> Command:
        """905: another member has the lowest id now. Anybody may send this, so all NameServers are asked."""
        self._ask_soon()
        return request.respond()

    def exchange_ha_info(self, channel: Channel, request: Command) -> Command:
        """906: a master that is about to register sends its address, or a slave asks for it."""
        sender = EXCHANGE_BROKER_HA_INFO.header(request)
        answer = ExchangeHAInfoHeader()
        if self._role.now.follows:
            if sender.master_address and sender.master_ha_address:
                self._master.returning(MasterAddress(sender.master_address, sender.master_ha_address))
        elif self._role.now.is_master:
            answer = ExchangeHAInfoHeader(self._identity.ha_addr, self._store.log.flushed, self._identity.addr)
        return EXCHANGE_BROKER_HA_INFO.answer(request, answer)


class SlaveRefusals(Part):
    """Refuses, while this broker is not the master, what would make its log or its topics differ from the master's.

    Clients then try another broker.
    """

    def __init__(self, role: RoleMachine) -> None:
        self._role = role

    def hook(self, code: int) -> Hook | None:
        described = BY_CODE.get(code)
        answer = described.on_slave if described else None
        if answer is None:
            return None
        return lambda channel, request: None if self._role.now.is_master else _refuse(answer, channel, request)


def _refuse(answer: SlaveAnswer, channel: Channel, request: Command) -> Command:
    if answer.code != ResponseCode.SUCCESS:
        raise RequestRefused(answer.code, answer.remark)
    if request.code == DELETE_TOPIC_IN_BROKER.code:
        # If the topic could not be deleted on the master either, refuse with the same error as the master.
        topic = DELETE_TOPIC_IN_BROKER.header(request).topic
        check_topic(topic)
        check_topic_is_users(topic)
    logger.info("request %d by %s left to the master", request.code, channel.remote)
    return request.respond(remark=answer.remark or None)


SECOND_MS = 1_000
# lastReadTimeMs, lastTimerLogFlushPos, lastTimerQueueOffset, masterTimerQueueOffset; DataVersion: state, time, counter.
_TIMER_CHECKPOINT = struct.Struct(">7q")


class TimerState(NamedTuple):
    """How late timed messages are, and how far their queue was read."""

    behind_ms: int
    read_to: int


class SlaveTableHandlers(Part):
    """Tables that slaves and masters ask for besides topics, groups and offsets: 60, 61, 402."""

    def __init__(self, clock: Clock, modes: RequestModes, timers: Callable[[], TimerState]) -> None:
        self._timers = timers
        self._clock = clock
        self._modes = modes

    def handlers(self) -> dict[int, Handler]:
        return {
            GET_TIMER_CHECK_POINT.code: self.timer_checkpoint,
            GET_TIMER_METRICS.code: self.timer_metrics,
        }

    def step_handlers(self) -> dict[int, StepHandler]:
        return {GET_ALL_MESSAGE_REQUEST_MODE.code: self.request_modes}

    def timer_checkpoint(self, channel: Channel, request: Command) -> Command:
        """60: up to when messages are delivered: an acting slave processes each second since then.

        The version is older than any other, so that a master keeps its own.
        """
        timers = self._timers()
        read_ms = (self._clock.now_ms() - timers.behind_ms) // SECOND_MS * SECOND_MS
        return request.respond(body=_TIMER_CHECKPOINT.pack(read_ms, 0, timers.read_to, timers.read_to, 0, 0, 0))

    def timer_metrics(self, channel: Channel, request: Command) -> Command:
        """61: an empty table: timed messages are not counted by topic here."""
        return answer_with(GET_TIMER_METRICS, request, TimerMetrics())

    def request_modes(self, channel: Channel, request: Command) -> Steps[Command]:
        """402: which groups pop and which pull, for slaves."""
        modes = MessageRequestModes(self._modes.by_topic())
        return (
            yield from answer_steps(
                GET_ALL_MESSAGE_REQUEST_MODE, request, modes, channel.max_frame_bytes, remedy="raise frameMaxLength"
            )
        )
