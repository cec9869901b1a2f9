"""The code blocks of README.md and the manual run as they stand there, and docs name files that exist."""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import trio

from scripts.daemons import ROOT, execute, reserve, reserve_pair
from scripts.packages import build, copy_tree, fresh_venv
from skylark import Admin, Message, Producer, blocking
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.testing import Cluster
from tests.support.daemons import in_threads, make_topic
from tests.support.manual import NAMESERVER, Block, Reader, Start, blocks, where
from tests.support.proxies import CLIENTS, NODE, PYTHON, proxy
from tests.support.waiting import DEADLINE_S
from tests.support.warm_daemons import WarmDaemons

GUIDES = [page for folder in ("docs", "examples") for page in (ROOT / folder).rglob("*.md")]
PAGES = sorted([*ROOT.glob("*.md"), *GUIDES])

# Modules that most programs of the manual need: each program finds them imported.
IMPORTED = ("pyarrow", "pytest", "skylark", "skylark.aio", "skylark.blocking", "skylark.sdk.testing.daemons")
MANUAL = ["README.md", *(f"docs/{page.relative_to(ROOT / 'docs')}" for page in sorted((ROOT / "docs").rglob("*.md")))]
# Blocks of these folders must be run, or say why not. In the other pages the Python programs are run.
TASKS = ("README.md", "docs/get-started/", "docs/guides/")
# Page → what runs its blocks instead, since they need Spark, or more than a cluster.
ELSEWHERE = {
    "docs/guides/rocketmq5-clients.md": "tests/e2e/test_guide.py",
    "docs/guides/secure.md": "tests/e2e/test_guide.py",
    "docs/guides/faststream.md": "tests/sdk/integrations/faststream/test_manual.py",
    "docs/guides/spark.md": "tests/spark_connector/test_spark_stream.py",
    "docs/guides/spark-streams.md": "tests/spark_connector/test_spark_stream.py",
    "docs/guides/spark-writing.md": "tests/spark_connector/test_spark_stream.py",
    "docs/guides/spark-from-kafka.md": "tests/spark_connector/test_spark_stream.py",
}
# Page → how many of its blocks cannot be run; each says why.
NOT_RUN = {
    "README.md": 1,
    "docs/get-started/install.md": 1,
    "docs/guides/celery.md": 1,
    "docs/guides/move-from-rocketmq.md": 2,
    "docs/guides/observe.md": 1,
    "docs/guides/rocketmq5-clients.md": 2,
    "docs/guides/spark-from-kafka.md": 1,
    "docs/guides/spark.md": 7,
}
DEV = ("README.md", "docs/get-started/first-message.md")
# Conditions in SQL and light queues; timed messages as soon as they are due.
OPTIONS = {"enablePropertyFilter": True, "enableLmq": True, "enableMultiDispatch": True, "timerPrecisionMs": 100}
CONSUMERS = [block.text for block in blocks("docs/guides/consumers.md") if "Consumer(" in block.text]


def runnable(page: str) -> list[Block]:
    """The blocks that can be run: Python programs, and of pages about tasks also shell commands."""
    languages = ("python", "sh") if page.startswith(TASKS) else ("python",)
    return [block for block in blocks(page) if block.language in languages and not block.not_run]


WITH_A_CLUSTER = [page for page in MANUAL if page not in DEV and page not in ELSEWHERE and runnable(page)]


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmDaemons]:
    """Starts programs in forks of a process that has imported the SDK."""
    programs = WarmDaemons(*IMPORTED)
    yield programs
    programs.close()


@pytest.mark.parametrize("page", WITH_A_CLUSTER)
def test_the_blocks_of_a_page_run(page: str, warm: WarmDaemons, tmp_path: Path) -> None:
    with Cluster(options=OPTIONS) as cluster, blocking.Producer(cluster.nameserver) as producer:

        def prime() -> None:
            """A message for a handler that this page shows alone."""
            producer.send(Message("orders", b"a cup of tea", tags="tea", properties={"amount": "200", "shop": "north"}))

        with Reader(tmp_path, warm.start, {NAMESERVER: cluster.nameserver}, prime) as reader:
            reader.read(runnable(page))


def read_with_dev(
    typed: Sequence[Block], folder: Path, start: Start, replaced: Mapping[str, str], environment: Mapping[str, str]
) -> None:
    """Read blocks that start ``skylark dev``, at free ports."""
    ports = {name: reserve() for name in ("--port", "--broker-port", "--grpc-port", "--console-port")}
    options = " ".join(f"{name} {port.number}" for name, port in ports.items())
    own = {"skylark dev": f"skylark dev {options}", NAMESERVER: f"127.0.0.1:{ports['--port'].number}"}
    with Reader(folder, start, {**own, **replaced}, environment=environment) as reader:
        reader.read(typed)


@pytest.mark.parametrize("page", DEV)
def test_a_first_message_is_handled_as_the_page_says(page: str, warm: WarmDaemons, tmp_path: Path) -> None:
    read_with_dev(runnable(page), tmp_path, warm.start, {}, {})


@pytest.mark.nightly
def test_the_blocks_of_the_readme_lead_from_a_wheel_to_a_handled_message(tmp_path: Path) -> None:
    """In a fresh environment, in which pip installs the wheel and what it needs."""
    copy_tree(tmp_path / "clone")
    wheel = build("wheel", tmp_path / "clone", tmp_path)
    path = os.pathsep.join([str(fresh_venv(tmp_path / "venv").parent), os.environ["PATH"]])
    read_with_dev(runnable("README.md"), tmp_path, execute, {'".[': f'"{wheel}['}, {"PATH": path})


@pytest.mark.nightly
def test_a_guarded_cluster_takes_a_message_as_the_guide_says(tmp_path: Path) -> None:
    namesrv, broker, ha = reserve(), *reserve_pair()
    ports = f"--listen-port {broker.number} --ha-listen-port {ha.number} --fast-listen-port 0"
    small = f"--mapped-file-size-commit-log {8 << 20} --max-message-size 1000000"
    replaced = {NAMESERVER: f"127.0.0.1:{namesrv.number}", "broker -c": f"broker {ports} {small} -c"}
    with Reader(tmp_path, execute, replaced) as reader:
        reader.read(runnable("docs/guides/secure.md"))


@pytest.mark.nightly
@pytest.mark.spark
def test_a_csv_file_becomes_windows_as_the_guide_says(tmp_path: Path) -> None:
    found = [block for block in runnable("docs/guides/spark.md") if block.language == "sh" or block.title]
    java = {name: os.environ[name] for name in ("JAVA_HOME", "JAVA_TOOL_OPTIONS") if name in os.environ}
    read_with_dev(found, tmp_path, execute, {}, java)
    assert any("17.25" in log.read_text() for log in tmp_path.glob("*.log")), "the sum of north's first minute is shown"


@pytest.mark.nightly
@pytest.mark.needs("Node")
def test_the_official_clients_of_the_guide_run(tmp_path: Path) -> None:
    found = [block for block in blocks("docs/guides/rocketmq5-clients.md") if block.language and not block.not_run]
    folders = {name: str(folder) for name, folder in (("PYTHONPATH", CLIENTS[PYTHON]), ("NODE_PATH", CLIENTS[NODE]))}
    with Cluster() as cluster, proxy(cluster.nameserver) as served:
        replaced = {NAMESERVER: cluster.nameserver, "127.0.0.1:8081": served.address}
        with Reader(tmp_path, execute, replaced, environment=folders) as reader:
            reader.read(found)


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
        rows = (await admin.consume_stats("warehouse", "orders")).offset_table.values()
        assert sum(row.consumer_offset for row in rows) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_file_names_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    folders = "mqcommon|remoting|namesrv|broker|sdk|spark_connector|tests|bench|conf|scripts|docs|examples"
    named = re.findall(rf"`((?:{folders})/[\w./-]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_chinese_readme_has_the_same_blocks() -> None:
    assert [block.text for block in blocks("README.zh-CN.md")] == [block.text for block in blocks("README.md")]


def test_blocks_that_are_not_run_say_why() -> None:
    """A block that cannot run anywhere is rare: count it here."""
    found = [block for page in MANUAL for block in blocks(page) if block.page.startswith(TASKS)]
    assert [where(block) for block in found if not block.language] == [], "a block has a language: sh, python, text"
    assert [where(one) for one in found if one.mark and not (one.not_run or one.prints)] == [], "unknown marks"
    assert Counter(block.page for block in found if block.not_run) == NOT_RUN
    assert all((ROOT / runner).exists() for runner in ELSEWHERE.values())
