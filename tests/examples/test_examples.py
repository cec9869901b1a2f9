"""The programs of examples/ run, and do what they say."""

import asyncio
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from skylark import blocking
from skylark.sdk.testing import Cluster, cluster_fixture
from tests.tidy.tree import ROOT

EXAMPLES = ROOT / "examples"
cluster = cluster_fixture(scope="module")


def fill(cluster: Cluster, topic: str, count: int) -> set[str]:
    """A new topic with these messages."""
    cluster.create_topic(topic)
    bodies = [str(number) for number in range(count)]
    with blocking.Producer(cluster.nameserver) as producer:
        producer.send_many(topic, [body.encode() for body in bodies])
    return set(bodies)


@contextmanager
def program(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The example in a process of its own, which is ended by `interrupt`."""
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / name), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def interrupt(process: subprocess.Popen[str]) -> list[str]:
    """Ctrl-C for the process and its children; returns the lines that it still wrote."""
    os.killpg(process.pid, signal.SIGINT)
    # Not communicate(): it would miss what readline() has buffered.
    assert process.stdout is not None and process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    assert (process.wait(), err) == (0, "")
    return out.splitlines()


def lines(process: subprocess.Popen[str], enough: Any) -> list[str]:
    """The lines that it writes until ``enough(lines)``."""
    assert process.stdout is not None
    found: list[str] = []
    while not enough(found):
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        found.append(line.strip())
    return found


def test_the_project_passes_its_own_tests() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=EXAMPLES / "orders", capture_output=True, text=True)
    assert run.returncode == 0 and "3 passed" in run.stdout, run.stdout + run.stderr


def test_ctrl_c_loses_nothing_and_repeats_nothing(cluster: Cluster) -> None:
    bodies = fill(cluster, "graceful", 300)

    def done(found: list[str]) -> list[str]:
        return [line.removeprefix("done ") for line in found if line.startswith("done ")]

    with program("graceful.py", cluster.nameserver, "graceful") as process:
        first = lines(process, lambda found: len(done(found)) >= 20)
        first += interrupt(process)
    assert sum(line.startswith("begin ") for line in first) == len(done(first))
    with program("graceful.py", cluster.nameserver, "graceful") as process:
        second = lines(process, lambda found: len(done(found)) + len(done(first)) >= len(bodies))
        second += interrupt(process)
    handled = done(first) + done(second)
    assert set(handled) == bodies and len(handled) == len(bodies)


def test_a_pool_of_processes_shares_a_topic(cluster: Cluster) -> None:
    bodies = fill(cluster, "pool", 100)
    with program("worker_pool.py", cluster.nameserver, "pool", "2") as process:
        found = lines(process, lambda found: {line.split()[1] for line in found} >= bodies)
        victim = int(found[0].split()[0])
        os.kill(victim, signal.SIGKILL)
        with blocking.Producer(cluster.nameserver) as producer:
            producer.send_many("pool", [b"after"] * 8)
        afterwards = lines(process, lambda found: sum(line.endswith("after") for line in found) >= 8)
        assert not any(line.startswith(f"{victim} after") for line in afterwards)
        interrupt(process)


def test_a_celery_project_that_moved_by_one_line(cluster: Cluster) -> None:
    celery = pytest.importorskip("celery").__name__
    folder = EXAMPLES / "celery_shop"
    environment = {**os.environ, "NAMESRV_ADDR": cluster.nameserver, "PYTHONDONTWRITEBYTECODE": "1"}
    worker = subprocess.Popen(
        [sys.executable, "-m", celery, "-A", "shop", "worker", "-c", "2"], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        # What is sent before the worker is ready waits for it.
        run = subprocess.run(
            [sys.executable, "order.py", "4"], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        said = run.stdout.splitlines()
        assert said == [*[f"order {each}: {each}.20" for each in range(1, 5)], "order 1: how was the tea?"], run.stderr
        worker.terminate()
        out, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0, out
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def test_programs_that_cannot_work_end_with_the_reason(cluster: Cluster) -> None:
    with program("graceful.py", "127.0.0.1:1", "graceful") as process:
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait() == 1
    assert "no NameServer of 127.0.0.1:1 answers" in said and "Traceback" not in said


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import web  # type: ignore[import-not-found]

    return web


def test_a_web_application(cluster: Cluster, web: Any) -> None:
    cluster.create_topic("orders")
    app = web.Orders(cluster.nameserver)

    async def request(method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(part: dict[str, Any]) -> None:
            sent.append(part)

        await app({"type": "http", "method": method, "path": path}, receive, send)
        return sent[0]["status"], sent[1]["body"]

    async def use() -> None:
        life: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        started, told = asyncio.Event(), []

        async def send(part: dict[str, Any]) -> None:
            told.append(part["type"])
            started.set()

        life.put_nowait({"type": "lifespan.startup"})
        serving = asyncio.create_task(app({"type": "lifespan"}, life.get, send))
        await started.wait()
        answers = await asyncio.gather(*[request("POST", "/orders", b"tea") for _ in range(50)])
        assert {status for status, _ in answers} == {201} and len({body for _, body in answers}) == 50
        while await request("GET", "/orders") != (200, b'{"consumed": 50}'):  # noqa: ASYNC110  a client can only ask
            await asyncio.sleep(0.01)
        assert await request("GET", "/healthz") == (200, b'{"problem": null}')
        assert (await request("GET", "/teapots"))[0] == 404
        life.put_nowait({"type": "lifespan.shutdown"})
        await serving
        assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    asyncio.run(use())


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_help_and_wrong_arguments_are_answered_with_the_usage(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "sys.argv" not in (text := path.read_text(encoding="utf-8")) and "argparse" not in text:
        pytest.skip("it takes no arguments")
    if "pyspark" in text:
        pytest.importorskip("pyspark")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    for arguments, code in ((["--help"], 0), ([], 2)):
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(path), run_name="__main__")
        assert ended.value.code == code
        said = capsys.readouterr()
        assert "usage: " in said.out + said.err
