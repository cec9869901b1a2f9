"""The zip for executors holds all that they import but what is compiled."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.spark_zip import COMPILED, PURE, make_zip

# An executor: its Python has pyspark and what is compiled, and none of ours; pyspark itself needs py4j.
WORKER = """
import sys
zip_path = sys.argv[1]
sys.path.insert(0, zip_path)
import skylark.spark_connector.reading.batch_reader, skylark.spark_connector.writing.writer, pyspark_rocketmq
from skylark.sdk.blocking import Admin, Client, Producer, PullConsumer
import skylark.spark_connector.jobs.copy_topic
ours = {name for name in sys.modules if name.split(".")[0] in sys.argv[2].split(",")}
wrong = {n for n in ours if not str(getattr(sys.modules[n], "__file__", None) or zip_path).startswith(zip_path)}
sys.exit(f"not from the zip: {sorted(wrong)}" if wrong else 0)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The zip, and the names of the packages in it."""
    path = tmp_path_factory.mktemp("zip") / "skylark.zip"
    return path, make_zip(path)


@pytest.mark.spark
def test_executors_find_everything_in_it(made: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, _ = made
    command = [sys.executable, "-c", WORKER, str(path), ",".join(("skylark", "pyspark_rocketmq", *PURE))]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert run.returncode == 0, run.stderr


def test_it_holds_no_tests_and_nothing_compiled(made: tuple[Path, list[str]]) -> None:
    path, packages = made
    assert set(packages).isdisjoint(COMPILED)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    assert (
        "skylark/spark_connector/source.py" in names and "trio/__init__.py" in names and "pyspark_rocketmq.py" in names
    )
    assert not [name for name in names if name.endswith((".so", ".pyc")) or "/_tests/" in name]
