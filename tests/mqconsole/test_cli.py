import logging
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from skylark.mqconsole.cli import _serve, main
from skylark.mqconsole.options import ConsoleOptions
from tests.support.scrape import get
from tests.support.waiting import until


def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(main, words, env={"NAMESRV_ADDR": None, **(env or {})})
    return done.exit_code, done.output


def test_it_has_the_options_of_mqadmin_for_the_cluster() -> None:
    code, text = run("--help")
    assert code == 0
    for option in ("-n, --namesrvAddr", "--credentials", "--tls-config", "--timeout", "--listen-port", "--login"):
        assert option in text
    assert "--output" not in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "no NameServer address: give -n HOST:PORT or set NAMESRV_ADDR"),
        (("-n", "127.0.0.1:9876", "--bind-address", "0.0.0.0"), "others can reach the console: set login=true"),
        (("-n", "127.0.0.1:9876", "--bind-address", "0.0.0.0", "--login", "true"), "set httpsCertFile"),
        (("-n", "127.0.0.1:9876", "--credentials", "/nothing/here"), "/nothing/here"),
        (("-n", "127.0.0.1:9876", "--tls-config", "/nothing/here"), "/nothing/here"),
        (("-n", "127.0.0.1:9876", "-c", "/nothing/here"), "/nothing/here"),
    ],
)
def test_it_does_not_start_with_a_mistake(words: tuple[str, ...], text: str) -> None:
    code, said = run(*words)
    assert code == 1 and said.startswith("mqconsole: ") and text in said


def test_options_come_from_a_file_too(tmp_path: Path) -> None:
    conf = tmp_path / "console.conf"
    conf.write_text("listenPort=8089\npollInterval=10\n")
    code, said = run("-c", str(conf), "-p", "--poll-interval", "20")
    assert code == 0
    assert {"listenPort=8089", "pollInterval=20", "login=false"} <= set(said.splitlines())


async def test_its_health_page_tells_whether_it_serves(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    may_start, stopping, ready = trio.Event(), trio.Event(), trio.Event()

    class SlowConsole:
        async def run(self, task_status: trio.TaskStatus[str]) -> None:
            await may_start.wait()
            task_status.started("http://127.0.0.1:8088")

        def stop(self) -> None:
            pass

    console: Any = SlowConsole()
    async with trio.open_nursery() as nursery:
        options = ConsoleOptions(health_port=0)
        nursery.start_soon(partial(_serve, console, options, stopping, lambda text: ready.set()))
        await until(lambda: "health at" in caplog.text, "the page")
        found = re.search(r"health at http://(\S+)/healthz, /readyz", caplog.text)
        assert found
        assert await get(found[1], "/readyz") == (503, "the console starts\n")
        may_start.set()
        await ready.wait()
        assert await get(found[1], "/readyz") == (200, "ok\n")
        stopping.set()
