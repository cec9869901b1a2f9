"""Answers the heartbeats of masters with leases: each lasts for most of the broker's timeout from the heartbeat on.

A broker may acknowledge only during a lease. So that two brokers never have a lease at once, the Controller makes sure
after a heartbeat came that it still leads, and answers no master while an election is under way that may replace it. An
election begins when all leases are over: the master was silent for its timeout, or refuses connections. One read serves
all heartbeats that came meanwhile. RocketMQ's brokers want no answer and wait for none.
Neighbours: elections.py; `MasterLease` in broker/replication/autoswitch/decisions.py is the other side.
"""

from collections.abc import Callable
from typing import NamedTuple

from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.signal import Signal
from skylark.namesrv.controller.liveness import Key
from skylark.namesrv.controller.view import View
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import failure
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.registrations import BROKER_HEARTBEAT

MAX_WAITING = 100_000


class _Beat(NamedTuple):
    channel: Channel
    request: Command
    key: Key
    heard_ms: int
    timeout_ms: int


class Leases:
    """The heartbeats that wait for an answer.

    ``answer_later`` never waits; ``run`` answers. ``is_replacing``: whether an election waits for the group.
    """

    def __init__(self, view: View, is_replacing: Callable[[str], bool]) -> None:
        self._view = view
        self._is_replacing = is_replacing
        self._waiting: list[_Beat] = []
        self._wake = Signal()

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    def answer_later(self, channel: Channel, request: Command, key: Key, heard_ms: int, timeout_ms: int) -> None:
        """Queue a heartbeat for an answer."""
        if len(self._waiting) >= MAX_WAITING:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"{MAX_WAITING} heartbeats wait already; try again")
        self._waiting.append(_Beat(channel, request, key, heard_ms, timeout_ms))
        self._wake.set()

    async def run(self) -> None:
        """Answer until cancelled."""
        while True:
            await self._wake.wait()
            if self.has_work:
                await self.answer()

    async def answer(self) -> None:
        """Answer all heartbeats that wait."""
        # The read begins after these heartbeats came: if this Controller still leads then, no other has elected before.
        beats, self._waiting = self._waiting, []
        try:
            await self._view.read()
        except RequestRefused as refusal:
            for beat in beats:
                beat.channel.reply(beat.request, failure(beat.request, refusal))
            return
        # The lease counts from the arrival of the heartbeat, not from now: the broker counts from its sending.
        for beat in beats:
            beat.channel.reply(beat.request, self._answer(beat))

    def _answer(self, beat: _Beat) -> Command:
        name, broker_id = beat.key
        known = self._view.replicas.sets.get(name)
        if known is None:
            return beat.request.respond(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "it was forgotten")
        longest_ms = self._view.options.broker_heartbeat_timeout
        if beat.timeout_ms > longest_ms:
            # A new leader elects after this time: the leases of an earlier leader must be over by then.
            text = f"no lease: the heartbeat timeout, {beat.timeout_ms} ms, is longer than the Controllers'"
            return beat.request.respond(remark=f"{text} brokerHeartbeatTimeout, {longest_ms} ms")
        if known.master == broker_id:
            row = self._view.liveness.get(beat.key)
            if row is None or self._is_replacing(name):
                return beat.request.respond(ResponseCode.SYSTEM_BUSY, "a master of this set is being elected")
            # Recorded before the answer is sent: an election waits for the end of the lease, whether the answer arrives
            # or not.
            row.granted_until_ms = max(row.granted_until_ms, beat.heard_ms + beat.timeout_ms)
        return BROKER_HEARTBEAT.answer(beat.request, known.master_header)
