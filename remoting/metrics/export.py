"""Exports a daemon's metrics, as ``metricsExporterType`` says.

Nothing is imported, and nothing runs, while it is DISABLE. A collection is made in steps on the event loop, so that all
its numbers are of one daemon and no lock is needed; what takes longer than a step is done in a thread.
"""

import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

import trio

from skylark.mqcommon.extras import needs_extra
from skylark.mqcommon.metrics.metric import Column
from skylark.mqcommon.metrics.options import MetricsOptions
from skylark.mqcommon.metrics.prometheus_text import TextFormat, format_for, page
from skylark.remoting.metrics.health import HEALTH_PAGES, Health, serve_pages
from skylark.remoting.net.steps import Stepper, Steps

if TYPE_CHECKING:
    from skylark.remoting.metrics.http_pages import Page

logger = logging.getLogger(__name__)

# Lines that LOG writes at a time; with more topics and groups than that it is the wrong exporter.
MAX_LOG_LINES = 10_000


class Exporter:
    """Exports the metrics of a daemon in the ways that its options name.

    ``collect`` gives the columns, ``common`` are labels of all metrics. ``health``: pages beside /metrics.
    """

    def __init__(
        self,
        options: MetricsOptions,
        common: Sequence[tuple[str, str]],
        collect: Callable[[], Steps[list[Column]]],
        health: Health,
        stepper: Stepper,
    ) -> None:
        self._options = options
        self._common = [*common, *options.own_labels]
        if options.metrics_in_delta and options.metrics_exporter_type == "OTLP_GRPC":
            self._common.append(("aggregation", "delta"))
        self._collect = collect
        self._health = health
        self._stepper = stepper

    @property
    def is_on(self) -> bool:
        """Whether there are metrics to export."""
        return self._options.metrics_exporter_type != "DISABLE"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Export until cancelled. UserError when the port is in use, or a library is missing."""
        how = self._options.metrics_exporter_type
        if how == "PROM":
            await self._serve(task_status)
        elif how == "OTLP_GRPC":
            await self._push(task_status)
        elif how == "LOG":
            task_status.started()
            await self._log_often()
        else:
            task_status.started()

    # --- PROM

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        options = self._options
        place = (options.metrics_prom_exporter_host, options.metrics_prom_exporter_port, "metricsPromExporterPort")
        await serve_pages(
            place, {"/metrics": self._metrics, **self._health.pages()}, HEALTH_PAGES, "metrics", task_status
        )

    async def _metrics(self, accept: str) -> "Page":
        from skylark.remoting.metrics.http_pages import Page

        text_format = format_for(accept)
        return Page(HTTPStatus.OK, await self._text(text_format), text_format.value)

    async def _text(self, text_format: TextFormat) -> list[bytes]:
        columns = await self._stepper.run(self._collect())
        return await self._stepper.run(page(columns, self._common, text_format))

    # --- OTLP_GRPC

    async def _push(self, task_status: trio.TaskStatus[None]) -> None:
        options = self._options
        with needs_extra("metricsExporterType=OTLP_GRPC", "metrics"):
            from skylark.remoting.metrics.otlp import Push
        timeout_s = options.metric_grpc_exporter_time_out_in_mills / 1_000
        push = Push(options.push_url, options.push_headers, timeout_s, self._common, in_delta=options.metrics_in_delta)
        logger.info("metrics are pushed to %s, by OTLP over HTTP", options.push_url)
        task_status.started()
        failing = False
        try:
            while True:
                await trio.sleep(options.metric_grpc_exporter_interval_in_mills / 1_000)
                columns = await self._stepper.run(self._collect())
                # Abandoned when the daemon stops: a collector that hangs must not hold up the stop.
                sent = await trio.to_thread.run_sync(push.send, columns, abandon_on_cancel=True)
                if not sent and not failing:
                    logger.error("metrics were not taken by %s; tried again at each interval", options.push_url)
                failing = not sent
        finally:
            push.close()

    # --- LOG

    async def _log_often(self) -> None:
        while True:
            await trio.sleep(self._options.metric_logging_exporter_interval_in_mills / 1_000)
            lines = 0
            for piece in await self._text(TextFormat.CLASSIC):
                for line in piece.decode().splitlines():
                    if not line.startswith("#"):
                        lines += 1
                        if lines <= MAX_LOG_LINES:
                            logger.info("%s", line)
                await trio.lowlevel.checkpoint()
            if lines > MAX_LOG_LINES:
                logger.warning("%d values were not logged: metricsExporterType=PROM has all", lines - MAX_LOG_LINES)
