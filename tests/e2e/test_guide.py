"""The programs of README.md and the guides run as they stand there, and docs name files that exist."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from scripts.daemons import ROOT
from skylark import Admin, Message, Producer, SkylarkError
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.support.daemons import in_threads, make_topic
from tests.support.waiting import DEADLINE_S, until

GUIDES = [page for folder in ("docs", "examples") for page in (ROOT / folder).rglob("*.md")]
PAGES = sorted([*ROOT.glob("*.md"), *GUIDES])


def programs(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


# The last one is a consumer, which runs until it is stopped.
ARROW = programs("docs/guides/arrow.md")
CONSUMERS = [program for program in programs("docs/guides/consumers.md") if "Consumer(" in program]
OTHERS = [program for program in programs("docs/guides/consumers.md") if "Consumer(" not in program]


# Runs each program of a list in a fork of a process that has imported the SDK, and what most programs need of it.
RUN_EACH = """
import gc, json, os, sys
import pyarrow
from skylark import *
from skylark.sdk.aio import *
from skylark.sdk.blocking import *
from skylark.sdk.testing import Cluster

# A child that ends would else look through all objects of all modules, which takes longer than most programs.
gc.freeze()
for program in json.load(sys.stdin):
    child = os.fork()
    if not child:
        exec(compile(program, "program", "exec"), {"__name__": "__main__"})
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit(program)
"""


async def test_the_programs_of_the_guide_run(tmp_path: Path) -> None:
    options = {"enableLmq": True, "enableMultiDispatch": True}
    async with in_threads(tmp_path, brokers=2, options=options) as cluster:
        await make_topic(cluster, TopicConfig("orders", 4, 4))
        await make_topic(cluster, TopicConfig("hello", 4, 4))
        env = {**os.environ, "NAMESRV_ADDR": cluster.nameserver}
        # In this order: the programs of README.md commit each message by itself, and those of sdk.md send thousands.
        guides = ("asyncio", "test-your-service", "trace")
        pages = (
            "README.md",
            "docs/reference/sdk.md",
            "docs/how/delivery.md",
            *(f"docs/guides/{name}.md" for name in guides),
        )
        found = [program for page in pages for program in programs(page)] + ARROW[:2] + OTHERS
        assert len(found) > 5
        texts = [program.replace('"127.0.0.1:9876"', f'"{cluster.nameserver}"') for program in found]
        run = await trio.run_process(
            [sys.executable, "-c", RUN_EACH], stdin=json.dumps(texts).encode(), env=env, cwd=tmp_path, check=False,
            capture_stdout=True, capture_stderr=True,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr.decode()


@pytest.mark.parametrize("program", [*CONSUMERS, *ARROW[2:]])
async def test_the_consumers_of_the_guide_run_until_they_are_stopped(tmp_path: Path, program: str) -> None:
    options = {"enablePropertyFilter": True}
    async with (
        in_threads(tmp_path, options=options) as cluster,
        Producer(cluster.nameserver) as producer,
        Admin(cluster.nameserver) as admin,
    ):
        await make_topic(cluster, TopicConfig("orders", 4, 4))
        text = program.replace('"127.0.0.1:9876"', f'"{cluster.nameserver}"')
        (group,) = re.findall(r'group="(\w+)"', text)
        await producer.send(Message("orders", b"one", tags="tea"))
        run = await trio.lowlevel.open_process(
            [sys.executable, "-c", text], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

        async def consumed() -> bool:
            try:
                rows = (await admin.consume_stats(group, "orders")).offset_table.values()
            except SkylarkError:
                return False  # the group is not known yet
            return sum(row.consumer_offset for row in rows) == 1

        try:
            await until(consumed, "the message is consumed")
            run.send_signal(signal.SIGINT)
            assert run.stderr is not None
            said = b"".join([part async for part in run.stderr])
        finally:
            run.kill()
            await run.wait()
        assert said.decode().splitlines()[-1] == "KeyboardInterrupt"


async def test_ctrl_c_lets_the_handler_of_the_guide_finish_and_commits(tmp_path: Path) -> None:
    interrupted = """\
    import os, signal
    print("begins")
    os.kill(os.getpid(), signal.SIGINT)
    print("ends", flush=True)
"""
    program = re.sub(r"    print\(.*\)\n", lambda _: interrupted, CONSUMERS[0], count=1)
    async with (
        in_threads(tmp_path) as cluster,
        Producer(cluster.nameserver) as producer,
        Admin(cluster.nameserver) as admin,
    ):
        await make_topic(cluster, TopicConfig("orders", 4, 4))
        await producer.send(Message("orders", b"one"))
        text = program.replace('"127.0.0.1:9876"', f'"{cluster.nameserver}"')
        with trio.fail_after(DEADLINE_S):
            run = await trio.run_process(
                [sys.executable, "-c", text], check=False, capture_stdout=True, capture_stderr=True
            )
        assert run.stdout.decode().split() == ["begins", "ends"]
        assert run.stderr.decode().splitlines()[-1] == "KeyboardInterrupt"
        rows = (await admin.consume_stats("shop", "orders")).offset_table.values()
        assert sum(row.consumer_offset for row in rows) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_file_names_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    folders = "mqcommon|remoting|namesrv|broker|sdk|spark_connector|tests|bench|conf|scripts|docs|examples"
    named = re.findall(rf"`((?:{folders})/[\w./-]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_scripts_say_how_they_are_used() -> None:
    run = subprocess.run([ROOT / "scripts" / "quickstart", "--help"], capture_output=True, text=True, cwd="/")
    assert run.returncode == 0 and run.stdout.startswith("usage: scripts/quickstart [options]")
    assert run.stderr == ""
