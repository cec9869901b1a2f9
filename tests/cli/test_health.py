"""`skylark health`: exit codes and lines, against real health pages."""

import logging
import re
from collections.abc import AsyncIterator

import pytest
import trio
from click.testing import CliRunner, Result

from skylark.cli.main import skylark
from skylark.mqcommon.metrics.options import HealthOptions
from skylark.remoting.metrics.health import Health


class Pages:
    """The health pages of a daemon that is unready for the reason ``why``."""

    def __init__(self) -> None:
        self.why = ""
        self.port = ""


@pytest.fixture
async def pages(nursery: trio.Nursery, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Pages]:
    caplog.set_level(logging.INFO)
    made = Pages()
    await nursery.start(Health(HealthOptions(health_port=0), lambda: made.why).run)
    found = re.search(r"health at http://127\.0\.0\.1:(\d+)/healthz", caplog.text)
    assert found
    made.port = found[1]
    yield made


def run(*words: str, **environ: str) -> Result:
    env = {"SKYLARK_HEALTH_PORT": None, "SKYLARK_HEALTH_HOST": None, **environ}
    return CliRunner().invoke(skylark, ["health", *words], env=env)


async def test_a_ready_daemon_is_exit_code_0(pages: Pages) -> None:
    result = await trio.to_thread.run_sync(lambda: run("--port", pages.port))
    assert (result.exit_code, result.output) == (0, "ok\n")


async def test_the_reason_of_an_unready_daemon_is_printed_and_it_lives(pages: Pages) -> None:
    pages.why = "the disk is full"
    # As in the image.
    environ = {"SKYLARK_HEALTH_PORT": pages.port, "SKYLARK_HEALTH_HOST": "0.0.0.0"}
    result = await trio.to_thread.run_sync(lambda: run(**environ))
    assert (result.exit_code, result.output) == (1, "the disk is full\n")
    result = await trio.to_thread.run_sync(lambda: run("--live", **environ))
    assert (result.exit_code, result.output) == (0, "ok\n")


def test_a_daemon_that_does_not_answer_is_exit_code_1() -> None:
    result = run("--port", "1", "--timeout", "1")
    assert result.exit_code == 1
    assert result.output.startswith("no answer from the health page at 127.0.0.1:1 (")
    assert result.output.endswith("the daemon is starting, has ended, or has another healthPort\n")


def test_without_a_port_the_variable_is_named() -> None:
    result = run()
    assert result.exit_code == 2
    assert "SKYLARK_HEALTH_PORT" in result.output
