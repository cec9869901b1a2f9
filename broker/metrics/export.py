"""The metrics of a broker, and its health pages, as parts.

`Metrics` measures requests, and exports all metrics as ``metricsExporterType`` says. While that is DISABLE there is no
such part, and no request is measured.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress

import trio

from skylark.broker.cold_reads import reading
from skylark.broker.metrics.counters import Sources, client_columns, message_columns, state_columns
from skylark.broker.metrics.exporter_names import old_columns, runtime_columns
from skylark.broker.metrics.lag import LagReader
from skylark.broker.metrics.table import GROUP_CREATE_TIME, TOPIC_CREATE_TIME
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.replication.role import RoleKind, RoleMachine
from skylark.broker.store.log.residency import Damaged
from skylark.broker.writing.admission import Admission
from skylark.mqcommon.metrics.metric import Column, Metric, column
from skylark.remoting.metrics.export import Exporter
from skylark.remoting.metrics.health import Health
from skylark.remoting.metrics.rpc import RpcTimes
from skylark.remoting.net.server import Handler, SlowHandler
from skylark.remoting.net.steps import Stepper, Steps
from skylark.remoting.protocol.requests.groups import UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
from skylark.remoting.protocol.requests.topics import UPDATE_AND_CREATE_TOPIC


class Metrics(Part):
    """Measures requests, and collects all metrics."""

    def __init__(self, sources: Sources, health: Health, stepper: Stepper) -> None:
        options = sources.options
        self._sources = sources
        self._rpc = RpcTimes()
        self._lags = LagReader(sources.store, sources.metadata.consumer_offsets, sources.clients, sources.clock)
        self._compatible = options.exporter_compatible_names
        common = [("cluster", options.broker_cluster_name), ("node_type", "broker"), ("node_id", options.broker_name)]
        self.exporter = Exporter(options, common, self.collect, health, stepper)

    def measured(
        self, quick: Mapping[int, Handler], slow: Mapping[int, SlowHandler]
    ) -> tuple[dict[int, Handler], dict[int, SlowHandler]]:
        """The broker's handlers, measured."""
        return self._rpc.measured(quick), self._rpc.measured_slow(slow)

    def after_turn(self) -> None:
        """End the measurement of a turn; this part is the last one, so what the others do then is measured, too."""
        self._rpc.end_turn()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Export the metrics, until cancelled."""
        await self.exporter.run(task_status=task_status)

    def collect(self) -> Steps[list[Column]]:
        """All columns, in steps."""
        sources = self._sources
        lags = yield from self._lags.read()
        columns = [
            *(yield from state_columns(sources)),
            *(yield from message_columns(sources)),
            *(yield from client_columns(sources.clients)),
            *lags.columns(),
            self._rpc.column(),
            self._statuses(TOPIC_CREATE_TIME, UPDATE_AND_CREATE_TOPIC.code),
            self._statuses(GROUP_CREATE_TIME, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.code),
        ]
        if self._compatible:
            options = sources.options
            columns += yield from old_columns(
                options.broker_name, options.broker_ip1, sources.stats, sources.store, lags, sources.clock
            )
            with suppress(Damaged):  # the time of the first message: the other figures are shown all the same
                columns += runtime_columns(options.broker_ip1, (yield from reading(sources.now.runtime)))
        return columns

    def _statuses(self, metric: Metric, code: int) -> Column:
        """The times of requests with ``code``, by success and failure."""
        good, bad = self._rpc.times_of(code)
        return column(metric, [(("success",), good), (("failure",), bad)])


class HealthPages(Part):
    """Health pages, there whether the broker has metrics or not.

    ``registered`` says how many NameServers have the broker, ``not_joined`` why it has no place in its set yet,
    ``disk_fault`` why the disk does not work; an empty text means that nothing is wrong.
    """

    def __init__(
        self,
        options: BrokerOptions,
        admission: Admission,
        role: RoleMachine,
        registered: Callable[[], int],
        not_joined: Callable[[], str],
        disk_fault: Callable[[], str],
    ) -> None:
        self._options = options
        self._admission = admission
        self._role = role
        self._registered = registered
        self._not_joined = not_joined
        self._disk_fault = disk_fault
        self.health = Health(options, self.unready)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the pages at ``healthPort``, if that is set, until cancelled."""
        await self.health.run(task_status=task_status)

    def unready(self) -> str:
        """Why clients should not be sent to this broker; "" if they may be."""
        if reason := self._admission.no_room:
            return f"no messages are accepted, as the disk has no room: {reason}"
        if fault := self._disk_fault():
            return fault
        if self._options.has_namesrvs and not self._registered():
            return "not registered with a NameServer yet"
        if self._role.now.kind is RoleKind.TAKING_OVER:
            return "this broker is becoming the master"
        return self._not_joined()
