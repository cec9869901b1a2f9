"""Each module is loaded once, by its name in ``skylark``; the short names are for the root of a clone."""

import subprocess
import sys
from configparser import ConfigParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from setuptools import find_packages

from scripts.daemons import ROOT
from tests.tidy.tree import PACKAGES

SHORT = frozenset(PACKAGES) - {"skylark"}


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_short_names_are_the_same_modules() -> None:
    code = """
import pickle, sdk, sdk.aio.producer, skylark, skylark.aio
from sdk import Producer
from sdk.producer.producer import Producer as Deep
from broker.store.store import MessageStore
import skylark.broker.store.store as store
assert Producer is Deep is skylark.Producer and sdk.aio.producer.Producer is skylark.aio.Producer
assert MessageStore is store.MessageStore and store.__spec__.name == "skylark.broker.store.store"
assert pickle.loads(pickle.dumps(Producer)) is Producer
try:
    import sdk.nowhere
except ModuleNotFoundError as error:
    print(error)
"""
    assert run(code) == "No module named 'sdk.nowhere'\n"


# A package, a package in a package, and a module.
PROGRAMS = ("broker", "namesrv.controller", "spark_connector.jobs.copy_topic")


def test_short_names_can_be_run() -> None:
    """Each as by ``python -m``, in a process of its own, forked from one that has imported nothing of ours."""
    code = f"""
import os, runpy, sys, click, trio
for module in {PROGRAMS}:
    child = os.fork()
    if child == 0:
        sys.argv = [module, "--help"]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert os.waitpid(child, 0)[1] == 0, module
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: ") == len(PROGRAMS)


def test_no_daemon_loads_a_module_by_its_short_name() -> None:
    """All in one process: no daemon may, so the sum of their modules has no short name."""
    daemons = ["broker", "namesrv", "namesrv.controller", "mqproxy", "mqconsole", "mqadmin"]
    loads = "; ".join(f"import skylark.{daemon}.cli" for daemon in daemons)
    loaded = set(run(f"import sys; {loads}; print(*{{name.split('.')[0] for name in sys.modules}}, sep='\\n')").split())
    assert "skylark" in loaded and loaded.isdisjoint(SHORT)


def test_one_name_is_installed_besides_those_that_kombu_and_spark_look_for() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packages = find_packages(str(ROOT), include=[setup["options.packages.find"]["include"]])
    assert "skylark.broker.store.log" in packages
    assert {name.partition(".")[0] for name in packages} == {"skylark"}
    assert setup["options"]["py_modules"] == "pyspark_rocketmq, kombu_rocketmq"


PROGRAM = """
import skylark.aio
from skylark import Message
from skylark.blocking import Producer, PullConsumer
from skylark.integrations import kombu, otel
from skylark.testing import Cluster

with Cluster() as cluster:
    cluster.create_topic("orders", queues=1)
    with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver, group="g") as consumer:
        producer.send(Message("orders", b"a cup of tea"))
        (queue,) = consumer.message_queues("orders")
        print(next(consumer.messages(queue, 0, 1)).body)
"""


def test_a_project_may_have_files_and_folders_of_our_names(tmp_path: Path) -> None:
    for name in SHORT:
        file = tmp_path / name / "__init__.py" if name in ("sdk", "mqcommon") else tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text("raise SystemExit('the file of the project was imported')")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("b'a cup of tea'\n", "", 0)
    command = [sys.executable, "-m", "skylark.broker", "--version"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).stdout.startswith(b"broker, version")


def test_an_old_python_is_told_which_one_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    spec = spec_from_file_location("skylark_elsewhere", ROOT / "skylark" / "__init__.py")
    assert spec is not None and spec.loader is not None
    with pytest.raises(ImportError, match=r"Skylark needs Python 3\.11 or later, and this is 3\."):
        spec.loader.exec_module(module_from_spec(spec))
