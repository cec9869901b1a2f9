"""Keeps several processes of one daemon running: starts, restarts and stops them, and serves their pages as one.

The supervisor serves no clients. A child that dies is started again, after a pause that grows as long as it keeps
dying. If a child does not come up at the first start, its options are wrong, and all children end. When the supervisor
itself is killed, the children stop. The supervisor has one page for metrics and one for health, which it merges from
the children's pages.
Neighbours: children.py runs one process; broker/instances.py and mqproxy/instances.py say which processes.
"""

import io
import logging
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import trio

from skylark.mqcommon.backoff import RestartPauses
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.logs.copier import LineCopier
from skylark.mqcommon.logs.options import LogOptions
from skylark.mqcommon.metrics.options import HealthOptions, MetricsOptions
from skylark.remoting.metrics.health import HEALTH_PAGES, serve_pages
from skylark.remoting.net.children import end_text, run_child
from skylark.remoting.net.daemon import Ready
from skylark.remoting.net.sockets import HeldPort, connect

if TYPE_CHECKING:
    from skylark.remoting.metrics.http_pages import Page

logger = logging.getLogger(__name__)

# Limits of a child's page: how long it may take, and how large it may be.
PAGE_S = 10.0
MOST_PAGE_BYTES = 256 * 1024 * 1024
_LINE_BYTES = 64 * 1024
_HOST = "127.0.0.1"


class Child(NamedTuple):
    """One process. ``command`` makes its command line of more options by name, which take precedence."""

    name: str
    command: Callable[[Mapping[str, str]], list[str]]
    #: Variables of its environment, beside the supervisor's own.
    environ: Mapping[str, str] = {}


class _Running:
    """One child, with the state of its present process."""

    def __init__(self, child: Child) -> None:
        self.name = child.name
        self.command = child.command
        self.environ = child.environ
        self.process: trio.Process | None = None
        self.is_ready = False
        self.restarts = 0
        #: The port of the child's metrics page.
        self.page = HeldPort(_HOST)


class Supervisor:
    """Runs all ``children``, each of which is a ``noun``; ``nouns`` is its plural."""

    def __init__(
        self,
        noun: str,
        nouns: str,
        children: Iterable[Child],
        *,
        logs: LogOptions,
        metrics: MetricsOptions,
        health: HealthOptions,
    ) -> None:
        """``logs`` are the options of the log of supervisor and children; ``pages`` those of the supervisor's pages."""
        self._noun, self._nouns = noun, nouns
        self._logs = logs
        self._metrics_options = metrics
        self._health_options = health
        self._all = [_Running(child) for child in children]
        # Copies the lines that the children print.
        self._lines = LineCopier()
        self._all_ready = trio.Event()
        self._stopping = trio.Event()

    async def run(self, stopping: trio.Event, ready: Ready) -> None:
        """Run until ``stopping`` is set and all children have ended. UserError when one of them does not come up."""
        try:
            await self._run(stopping, ready)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._lines.close)

    async def _run(self, stopping: trio.Event, ready: Ready) -> None:
        failed: list[str] = []
        async with trio.open_nursery() as pages:
            await self._serve_pages(pages)
            async with trio.open_nursery() as nursery:
                for running in self._all:
                    nursery.start_soon(self._keep, running, failed)
                nursery.start_soon(self._stop_when, stopping)
                nursery.start_soon(self._tell_when_ready, ready)
                if self._logs.log_file:
                    pages.start_soon(self._pass_hangups)
            pages.cancel_scope.cancel()
        if failed:
            raise UserError(failed[0])

    async def _stop_when(self, stopping: trio.Event) -> None:
        async with trio.open_nursery() as nursery:

            async def asked() -> None:
                await stopping.wait()
                self._stopping.set()

            nursery.start_soon(asked)
            # The children get SIGTERM from `run_child`.
            await self._stopping.wait()
            nursery.cancel_scope.cancel()
        self._all_ready.set()

    async def _tell_when_ready(self, ready: Ready) -> None:
        await self._all_ready.wait()
        if not self._stopping.is_set():
            names = ", ".join(running.name for running in self._all)
            logger.info("%d %s serve: %s", len(self._all), self._nouns, names)
            ready(f"{len(self._all)} {self._nouns} serve")

    async def _pass_hangups(self) -> None:
        """Pass SIGHUP on to the children, so that they reopen log files that logrotate has renamed."""
        with trio.open_signal_receiver(signal.SIGHUP) as received:
            async for _ in received:
                self._signal(signal.SIGHUP)

    def _signal(self, number: signal.Signals) -> None:
        for running in self._all:
            if running.process is not None:
                running.process.send_signal(number)

    # --- one child

    async def _keep(self, running: _Running, failed: list[str]) -> None:
        """Run the child again and again, until all stop."""
        pauses, was_ready = RestartPauses(Random()), False
        while not self._stopping.is_set():
            began = trio.current_time()
            code = await self._run_once(running)
            was_ready, running.is_ready = was_ready or running.is_ready, False
            if self._stopping.is_set():
                # A child that gets SIGTERM before its handler is installed dies of the signal.
                if code and code != -signal.SIGTERM:
                    logger.error("%s %s ended with %s", self._noun, running.name, end_text(code))
                return
            if not was_ready:
                failed.append(f"{self._noun} {running.name} ended with {end_text(code)} before it served; see its log")
                self._stopping.set()
                return
            pause_s = pauses.next_s(trio.current_time() - began)
            logger.error(
                "%s %s ended with %s; starting it in %.1f s", self._noun, running.name, end_text(code), pause_s
            )
            with trio.move_on_after(pause_s):
                await self._stopping.wait()
            running.restarts += 1

    async def _run_once(self, running: _Running) -> int:
        """Run the child until it ends; returns its exit code."""

        def started(process: trio.Process) -> None:
            running.process = process
            logger.info("%s %s has process %d", self._noun, running.name, process.pid)

        def serves() -> None:
            running.is_ready = True
            if all(each.is_ready for each in self._all):
                self._all_ready.set()

        try:
            return await run_child(
                running.command(_page_options(running.page.port)),
                running.name,
                started=started,
                serves=serves,
                stopping=self._stopping,
                copy=self._lines.put,
                environ={**os.environ, **running.environ},
                in_json=self._logs.log_format == "json",
            )
        finally:
            running.process = None

    # --- pages

    async def _serve_pages(self, nursery: trio.Nursery) -> None:
        options, own = self._metrics_options, self._health_options
        health = dict(zip(HEALTH_PAGES, (self._healthy, self._ready), strict=True))
        if options.metrics_exporter_type == "PROM":
            place = (options.metrics_prom_exporter_host, options.metrics_prom_exporter_port, "metricsPromExporterPort")
            await nursery.start(serve_pages, place, {"/metrics": self._metrics, **health}, HEALTH_PAGES, "metrics")
        if own.health_port >= 0:
            place = (own.health_host, own.health_port, "healthPort")
            await nursery.start(serve_pages, place, health, HEALTH_PAGES, "health")

    async def _healthy(self, accept: str) -> "Page":
        from skylark.remoting.metrics.http_pages import text_page

        return text_page(HTTPStatus.OK, "ok")

    async def _ready(self, accept: str) -> "Page":
        from skylark.remoting.metrics.http_pages import text_page

        away = [running.name for running in self._all if not running.is_ready]
        if self._stopping.is_set():
            return text_page(HTTPStatus.SERVICE_UNAVAILABLE, f"the {self._nouns} stop")
        if away:
            return text_page(HTTPStatus.SERVICE_UNAVAILABLE, f"not serving: {', '.join(away)}")
        return text_page(HTTPStatus.OK, "ok")

    async def _metrics(self, accept: str) -> "Page":
        from skylark.mqcommon.metrics.prometheus_text import TextFormat
        from skylark.remoting.metrics.http_pages import Page

        pages: dict[str, str] = {}

        async def ask(running: _Running) -> None:
            with suppress(OSError, trio.TooSlowError, ValueError):
                pages[running.name] = await _page(running.page.port, "/metrics")

        async with trio.open_nursery() as nursery:
            for running in self._all:
                nursery.start_soon(ask, running)
        rows = [
            "# HELP skylark_instance_up Whether an instance serves",
            "# TYPE skylark_instance_up gauge",
            *[f'skylark_instance_up{{instance="{each.name}"}} {int(each.is_ready)}' for each in self._all],
            "# HELP skylark_instance_restarts_total How often an instance was started again",
            "# TYPE skylark_instance_restarts_total counter",
            *[f'skylark_instance_restarts_total{{instance="{each.name}"}} {each.restarts}' for each in self._all],
        ]
        own = "\n".join(rows) + "\n"
        found = [pages[each.name] for each in self._all if each.name in pages]
        return Page(HTTPStatus.OK, [merged_pages([own, *found]).encode()], TextFormat.CLASSIC.value)


def _page_options(port: int) -> dict[str, str]:
    """Options that put a child's pages on a free loopback port, which other machines cannot reach."""
    return {
        "metrics_prom_exporter_host": _HOST,
        "metrics_prom_exporter_port": str(port),
        "health_port": "-1",
    }


def merged_pages(pages: Iterable[str]) -> str:
    """Pages of metrics as one: each metric stands once, with the rows of all pages."""
    heads: dict[str, list[str]] = {}
    rows: dict[str, list[str]] = {}
    for page in pages:
        name = ""
        for line in page.splitlines():
            if line.startswith("# "):
                kind, _, rest = line[2:].partition(" ")
                name = rest.partition(" ")[0]
                if kind in ("HELP", "TYPE") and line not in (head := heads.setdefault(name, [])):
                    head.append(line)
            elif line:
                rows.setdefault(name, []).append(line)
    lines = [line for name in {**heads, **rows} for line in (*heads.get(name, ()), *rows.get(name, ()))]
    return "\n".join(lines) + "\n" if lines else ""


async def _page(port: int, path: str) -> str:
    """The text of a child's page. OSError, TooSlowError or ValueError when it cannot be read."""
    import http.client

    answer = bytearray()
    with trio.fail_after(PAGE_S):
        async with await connect(_HOST, port) as stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: {_HOST}\r\nConnection: close\r\n\r\n".encode())
            while piece := await stream.receive(_LINE_BYTES):
                answer += piece
                if len(answer) > MOST_PAGE_BYTES:
                    raise ValueError(f"the page has more than {MOST_PAGE_BYTES} bytes")
    source = SimpleNamespace(makefile=lambda mode: io.BytesIO(answer))
    response = http.client.HTTPResponse(cast(Any, source))
    try:
        response.begin()
        if response.status != HTTPStatus.OK:
            raise ValueError(f"status {response.status}")
        return response.read().decode()
    except http.client.HTTPException as error:
        raise ValueError(repr(error)) from None
