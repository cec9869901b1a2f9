"""Each module is loaded once, by its name in ``skylark``; the short names are for the root of a clone."""

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(
    "module",
    ["broker", "namesrv", "namesrv.controller", "mqadmin", "mqproxy", "mqconsole", "spark_connector.jobs.copy_topic"],
)
def test_short_names_can_be_run(module: str) -> None:
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: " in done.stdout


@pytest.mark.parametrize(
    "module", ["broker.cli", "namesrv.cli", "namesrv.controller.cli", "mqproxy.cli", "mqconsole.cli", "mqadmin.cli"]
)
def test_no_daemon_loads_a_module_by_its_short_name(module: str) -> None:
    code = f"import sys, skylark.{module}; print(*{{name.split('.')[0] for name in sys.modules}}, sep='\\n')"
    assert set(run(code).split()).isdisjoint(SHORT)
