"""Several processes of one daemon: how they are kept, and the pages that their supervisor makes of theirs.

Tasks stand in for the processes.
"""

import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.logs.options import LogOptions
from skylark.mqcommon.metrics.options import HealthOptions, MetricsOptions
from skylark.remoting.metrics.http_pages import Page, PageServer, text_page
from skylark.remoting.net import supervisor as supervisor_module
from skylark.remoting.net.sockets import HeldPort, connect, listen
from skylark.remoting.net.supervisor import Child, Supervisor, merged_pages
from tests.support.waiting import until

HOST = "127.0.0.1"
Serves = Callable[[], object]
#: What a process does: it gets the port of its page, calls the function when it serves, and returns its exit code.
Process = Callable[[int, Serves, trio.Event], Awaitable[int]]


async def well_behaved(port: int, serves: Serves, stopping: trio.Event) -> int:
    serves()
    await stopping.wait()
    return 0


class Supervised:
    """A supervisor of ``processes``, by name."""

    def __init__(self, processes: Mapping[str, Process], **options: Any) -> None:
        self.processes = processes
        self.stopping = trio.Event()
        self.said: list[str] = []
        self.signals: list[tuple[str, int]] = []
        self.runs: list[str] = []
        self.supervisor = Supervisor(
            "thing",
            "things",
            [Child(name, lambda more: ["run", more["metrics_prom_exporter_port"]]) for name in processes],
            logs=options.get("logs", LogOptions()),
            metrics=options.get("metrics", MetricsOptions()),
            health=options.get("health", HealthOptions()),
        )

    async def run(self) -> None:
        await self.supervisor.run(self.stopping, self.said.append)

    async def run_child(
        self,
        command: Sequence[str],
        name: str,
        *,
        started: Callable[[Any], object],
        serves: Serves,
        stopping: trio.Event,
        **_: Any,
    ) -> int:
        """Stands in for `children.run_child`."""
        self.runs.append(name)
        started(SimpleNamespace(pid=1, send_signal=lambda number: self.signals.append((name, number))))
        return await self.processes[name](int(command[1]), serves, stopping)


@pytest.fixture
def supervised(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Supervised]:
    def make(processes: Mapping[str, Process], **options: Any) -> Supervised:
        made = Supervised(processes, **options)
        monkeypatch.setattr(supervisor_module, "run_child", made.run_child)
        return made

    return make


async def test_a_child_that_ends_before_it_serves_ends_all_and_is_named(
    supervised: Callable[..., Supervised], caplog: pytest.LogCaptureFixture
) -> None:
    async def wrong(port: int, serves: Serves, stopping: trio.Event) -> int:
        await trio.testing.wait_all_tasks_blocked()  # the others have begun
        return 3

    async def dies_at_the_end(port: int, serves: Serves, stopping: trio.Event) -> int:
        await stopping.wait()
        return -signal.SIGKILL

    found = supervised({"a": wrong, "b": dies_at_the_end, "c": well_behaved})
    with pytest.raises(UserError, match="thing a ended with exit code 3 before it served; see its log"):
        await found.run()
    assert found.said == []
    assert [text for text in caplog.messages if "ended" in text] == ["thing b ended with signal SIGKILL"]


async def test_a_child_that_dies_later_is_started_again_unless_all_stop(
    supervised: Callable[..., Supervised], autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def dies(port: int, serves: Serves, stopping: trio.Event) -> int:
        serves()
        await trio.sleep(10)
        return 1

    found = supervised({"a": dies})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.run)
        await until(lambda: caplog.text.count("thing a ended with exit code 1; starting it in") == 3, "three ends")
        found.stopping.set()
    assert found.runs == ["a"] * 3, "it stopped in the third pause"
    assert found.said == ["1 things serve"]


async def test_children_get_the_hangup_of_a_supervisor_with_a_log_file(supervised: Callable[..., Supervised]) -> None:
    found = supervised({"a": well_behaved, "b": well_behaved}, logs=LogOptions(log_file="things.log"))
    before = signal.getsignal(signal.SIGHUP)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.run)
        await until(lambda: bool(found.said), "all serve")
        await until(lambda: signal.getsignal(signal.SIGHUP) is not before, "the signal is waited for")
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: len(found.signals) == 2, "both got it")
        found.stopping.set()
    assert sorted(found.signals) == [("a", signal.SIGHUP), ("b", signal.SIGHUP)]


@pytest.fixture
def ports() -> Iterator[tuple[HeldPort, HeldPort]]:
    """For the pages of the supervisor."""
    held = HeldPort(HOST), HeldPort(HOST)
    yield held
    for each in held:
        each.release()


async def ask(port: HeldPort, path: str) -> tuple[int, str]:
    """(status, text) of a page."""
    answer = b""
    async with await connect(HOST, port.port) as stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        while piece := await stream.receive(65_536):
            answer += piece
    head, _, text = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), text.decode()


async def test_the_pages_are_those_of_all_children(
    supervised: Callable[..., Supervised], ports: tuple[HeldPort, HeldPort], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "MOST_PAGE_BYTES", 10_000)
    may_serve, may_end = trio.Event(), trio.Event()

    def with_page(answer: Callable[[str], Page]) -> Process:
        async def page(accept: str) -> Page:
            return answer(accept)

        async def process(port: int, serves: Serves, stopping: trio.Event) -> int:
            async with trio.open_nursery() as nursery:
                for listener in await listen(HOST, port):
                    nursery.start_soon(PageServer({"/metrics": page}).serve, listener)
                await may_serve.wait()
                serves()
                await stopping.wait()
                await may_end.wait()
                nursery.cancel_scope.cancel()
            return 0

        return process

    async def without_http(port: int, serves: Serves, stopping: trio.Event) -> int:
        serves()
        (listener,) = await listen(HOST, port)
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(stopping.wait)
            async with await listener.accept() as stream:
                await stream.receive(100)
                await stream.send_all(b"hello\r\n")
        return 0

    metrics, health = ports
    found = supervised(
        {
            "good": with_page(lambda _: Page(HTTPStatus.OK, [b"# TYPE a gauge\n\na 1\n"])),
            "busy": with_page(lambda _: text_page(HTTPStatus.SERVICE_UNAVAILABLE, "a 2")),
            "large": with_page(lambda _: Page(HTTPStatus.OK, [b"a 3\n" * 10_000])),
            "other": without_http,
        },
        metrics=MetricsOptions(metrics_exporter_type="PROM", metrics_prom_exporter_port=metrics.port),
        health=HealthOptions(health_port=health.port),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.run)
        await until(lambda: len(found.runs) == 4, "all have begun")
        for port in ports:
            assert await ask(port, "/healthz") == (200, "ok\n")
            assert await ask(port, "/readyz") == (503, "not serving: good, busy, large\n")
        may_serve.set()
        await until(lambda: bool(found.said), "all serve")
        assert await ask(health, "/readyz") == (200, "ok\n")
        status, text = await ask(metrics, "/metrics")
        rows = [line for line in text.splitlines() if not line.startswith("#")]
        assert status == 200
        assert rows == [
            *[f'skylark_instance_up{{instance="{name}"}} 1' for name in found.processes],
            *[f'skylark_instance_restarts_total{{instance="{name}"}} 0' for name in found.processes],
            "a 1",
        ]
        found.stopping.set()
        await trio.testing.wait_all_tasks_blocked()
        assert await ask(health, "/readyz") == (503, "the things stop\n")
        may_end.set()


def test_pages_are_put_together_by_metric() -> None:
    one = '# HELP a what\n# TYPE a gauge\na{b="1"} 1\n# HELP c what\n# TYPE c counter\nc 5\n'
    two = '# HELP c what\n# TYPE c counter\nc{b="2"} 6\n# HELP a what\n# TYPE a gauge\na{b="2"} 2\n'
    assert merged_pages([one, two]) == (
        '# HELP a what\n# TYPE a gauge\na{b="1"} 1\na{b="2"} 2\n# HELP c what\n# TYPE c counter\nc 5\nc{b="2"} 6\n'
    )
    assert merged_pages([]) == ""
