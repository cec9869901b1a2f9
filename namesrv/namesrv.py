"""The NameServer: wiring, and the loop that removes silent brokers.

A broker is removed as soon as its connection closes. It is also removed when a scan finds it silent for longer than
its heartbeat timeout (120 s unless it registered another); its connection is then closed, so that it notices and
registers again.
Neighbours: state.py (what this owns), handlers.py (requests), min_broker_notices.py (905); cli.py starts it.
"""

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from skylark.mqcommon.addresses import is_any_address
from skylark.mqcommon.clock import Clock, SystemClock
from skylark.mqcommon.disk.atomic import remove_leftovers
from skylark.mqcommon.disk.files import FileSystem, OsFiles
from skylark.mqcommon.errors import RemotingError
from skylark.mqcommon.exposure import opened
from skylark.mqcommon.metrics.metric import Column
from skylark.namesrv.config_handlers import build_slow_handlers
from skylark.namesrv.guard import Guard
from skylark.namesrv.handlers import build_handlers, build_step_handlers
from skylark.namesrv.kvconfig import KvConfig
from skylark.namesrv.metrics import collect
from skylark.namesrv.min_broker_notices import MinBrokerNotices
from skylark.namesrv.options import NamesrvOptions
from skylark.namesrv.probes import INTERVAL_S, Probes
from skylark.namesrv.registration_handlers import Registrations
from skylark.namesrv.routes import LiveBroker
from skylark.namesrv.state import State
from skylark.namesrv.watch_handlers import RouteWatches
from skylark.remoting.metrics.export import Exporter
from skylark.remoting.metrics.health import Health
from skylark.remoting.metrics.rpc import RpcTimes
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.limits import connection_budget
from skylark.remoting.net.server import Server
from skylark.remoting.net.steps import Stepper, Steps
from skylark.remoting.net.tls.options import DaemonTls, daemon_tls
from skylark.remoting.protocol.requests.registrations import PROBE_BROKER
from skylark.remoting.protocol.requests.routes import GUARDS_REGISTRATIONS, WATCH_ROUTES, WATCHES_ROUTES

if TYPE_CHECKING:
    from skylark.namesrv.controller.controller import Controller

logger = logging.getLogger(__name__)

# Answers are made at once; only a peer that does not read can make the stop last this long.
DRAIN_TIMEOUT_MS = 1_000
# Descriptors for the KV config, the log and the connections to slaves that get notices.
OTHER_DESCRIPTORS = 256
# A later answer to a probe is ignored; the broker has been removed by then.
PROBE_TIMEOUT_MS = 10_000
_LABELS = (("node_type", "namesrv"),)
_ANYBODY = (
    "whoever reaches the port can register brokers and change routes; set registrationUsers, or aclEnable=true and"
    " aclFile, or"
)


class Namesrv:
    """One NameServer. ``run`` serves until cancelled; call ``stop`` first to answer the requests in flight."""

    def __init__(
        self,
        options: NamesrvOptions,
        *,
        clock: Clock | None = None,
        fs: FileSystem | None = None,
        opened_because: str = "",
    ) -> None:
        """``opened_because``: why it listens on all interfaces although its options do not say so."""
        where = options.listening()
        self._where = where._replace(because=opened_because or where.because)
        fs = fs or OsFiles()
        clock = clock or SystemClock()
        if options.config_store_path and (reason := remove_leftovers(fs, options.config_store_path)):
            logger.warning("%s", reason)
        self.state = State(
            options=options,
            kv_config=KvConfig.load(fs, options.kv_config_path),
            clock=clock,
            fs=fs,
            started_ms=clock.monotonic_ms(),
        )
        self._stopping = False
        self._notices = MinBrokerNotices(self.state)
        self._controller = _controller(self.state, clock) if options.enable_controller_in_namesrv else None
        stepper = Stepper()
        self._watches = RouteWatches(self.state)
        self._probes: Probes[Channel] = Probes()
        self._registrations = Registrations(self.state, stepper, self._announce_changes)
        # Wrapped from the inside out: access control around the handlers, the measurement around both.
        handlers = build_handlers(self.state) | self._registrations.handlers()
        handlers[WATCH_ROUTES.code] = self._watches.handle
        slow_handlers = build_slow_handlers(self.state) | stepper.handlers(build_step_handlers(self.state))
        # Options are replaced when they change.
        self._tls = DaemonTls()
        self._guard = Guard(lambda: self.state.options) if options.is_guarded else None
        if self._guard is not None:
            handlers, slow_handlers = self._guard.guarded(handlers), self._guard.guarded_slow(slow_handlers)
        self._rpc = RpcTimes()
        self._health = Health(options, self._unready)
        self._exporter = Exporter(options, _LABELS, self._collect, self._health, stepper)
        after_turn = self._announce_changes
        if self._exporter.is_on:
            handlers, slow_handlers = self._rpc.measured(handlers), self._rpc.measured_slow(slow_handlers)
            after_turn = self._turned
        self._server = Server(
            handlers,
            slow_handlers,
            limits=options.server_limits(options.frame_max_length, options.server_channel_max_idle_time_seconds),
            on_close=self._on_close,
            after_turn=after_turn,
            greeting={WATCHES_ROUTES: "true", **({GUARDS_REGISTRATIONS: "true"} if self._guard is not None else {})},
            connections=connection_budget(
                options.max_connections,
                OTHER_DESCRIPTORS,
                options.max_connections_per_address,
                options.max_new_connections_per_second,
            ),
            reached_at=options.reached_at(),
        )

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and serve until cancelled; starts with the address ``"ip:port"``.

        Raises UserError (within an ExceptionGroup, as all nurseries do) when it cannot listen on the port.
        """
        options, where = self.state.options, self._where
        tls = self._tls = await trio.to_thread.run_sync(daemon_tls, options)
        async with trio.open_nursery() as nursery:
            address = await nursery.start(self._server.serve, where.address, options.listen_port, tls.secured)
            if tls.server is not None:
                nursery.start_soon(tls.server.watch)
            if self._controller is not None:
                logger.info("Controller serves at %s", await nursery.start(self._controller.run, tls))
            nursery.start_soon(self._forget_silent_brokers)
            nursery.start_soon(self._probe)
            nursery.start_soon(self._watches.run)
            nursery.start_soon(self._notices.run, tls.connect)
            nursery.start_soon(self._registrations.run)
            await nursery.start(self._exporter.run)
            await nursery.start(self._health.run)
            if self._guard is not None:
                nursery.start_soon(self._guard.run)
            anybody = _ANYBODY if self._guard is None else ""
            if is_any_address(where.address) and (line := opened(address, where.because, anybody)):
                logger.warning("%s", line)
            task_status.started(address)

    async def stop(self) -> None:
        """Accept no more connections and answer what is in flight; cancel ``run`` afterwards."""
        self._stopping = True
        self._server.stop_accepting()
        self._watches.release()
        if self._controller is not None:
            await self._controller.stop()
        await self._server.drain(DRAIN_TIMEOUT_MS)

    def _announce_changes(self) -> None:
        """Tell slaves and clients of changed routes, if any."""
        self._notices.queue_changes()
        self._watches.answer_changes()

    def _turned(self) -> None:
        self._announce_changes()
        self._rpc.end_turn()

    def _collect(self) -> Steps[list[Column]]:
        guard = self._guard
        return collect(self.state, self._rpc, self._server, lambda: guard.refusals if guard else 0, self._tls)

    def _unready(self) -> str:
        if self._stopping:
            return "this NameServer stops"
        return "brokers may not have registered yet" if self.state.is_waiting_for_brokers else ""

    def _on_close(self, channel: Channel) -> None:
        # At a stop all connections close: that says nothing about the brokers.
        for live in self.state.routes.close(channel):
            if not self._stopping:
                logger.warning("broker gone: %s reason=%s", _name(live), channel.closed_reason)
        self._watches.closed(channel)
        self._announce_changes()

    async def _forget_silent_brokers(self) -> None:
        clock = self.state.clock
        while True:
            interval_ms = self.state.options.scan_not_active_broker_interval
            slept_from_ms = clock.monotonic_ms()
            await trio.sleep(interval_ms / 1000)
            now_ms = clock.monotonic_ms()
            if now_ms - slept_from_ms > 2 * interval_ms + 1_000:
                # This process was stopped, not the brokers: their heartbeats wait in the sockets. Read those first.
                logger.warning("this process was stopped for %d ms; no broker is removed now", now_ms - slept_from_ms)
                continue
            self.forget_silent_brokers(now_ms)

    def forget_silent_brokers(self, now_ms: int) -> None:
        """Scan once; ``now_ms`` is the time of the monotonic clock."""
        for live in self.state.routes.expire(now_ms):
            logger.warning("broker silent for more than %d ms: %s", live.heartbeat_timeout_ms, _name(live))
            live.connection.close(f"no heartbeat for {live.heartbeat_timeout_ms} ms")
        self._announce_changes()

    async def _probe(self) -> None:
        while True:
            await trio.sleep(INTERVAL_S)
            if self.state.options.probe_brokers:
                self.probe_brokers(trio.current_time())

    def probe_brokers(self, now: float) -> None:
        """Ask the brokers that are silent; remove those that did not answer. ``now`` is trio's time."""
        connections = dict.fromkeys(live.connection for live in self.state.routes.askable())
        verdict = self._probes.poll(now, [(channel, channel.last_read) for channel in connections])
        for channel in verdict.ask:
            # The answer only has to be read: `last_read` then says that the broker lives.
            with suppress(RemotingError):
                channel.submit(PROBE_BROKER.command(None), PROBE_TIMEOUT_MS, lambda result: None)
        for channel in verdict.dead:
            for live in self.state.routes.close(channel):
                logger.warning("broker does not answer: %s", _name(live))
            channel.close("no answer to a probe")
        if verdict.dead:
            self._announce_changes()


def _controller(state: State, clock: Clock) -> "Controller":
    # Imported here: most NameServers are no Controllers, and start sooner.
    from skylark.namesrv.controller.controller import Controller

    return Controller(state, clock)


def _name(live: LiveBroker[Channel]) -> str:
    return f"{live.cluster} {live.broker_name} {live.broker_id} {live.broker_addr}"
