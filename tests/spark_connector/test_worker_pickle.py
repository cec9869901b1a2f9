import json
import pickle
import subprocess
import sys

import pytest
from pyspark import cloudpickle

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.extras import install_line
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.batch_reader import RocketMQBatchReader
from skylark.spark_connector.schema import spark_schema
from skylark.spark_connector.source import RocketMQDataSource, check_worker_python
from skylark.spark_connector.worker_pickle import pack

# A worker whose Python has pyspark, but none of ours; what it says of each thing, by what is missing.
_WORKER = """
import json, pickle, sys
from pyspark import cloudpickle
for missing, pickled in pickle.load(sys.stdin.buffer):
    modules = dict(sys.modules)
    sys.modules[missing] = None
    try:
        cloudpickle.loads(pickled)
        print(json.dumps(""))
    except ImportError as error:
        print(json.dumps(str(error)))
    sys.modules.clear()
    sys.modules.update(modules)
"""


def test_a_worker_without_our_modules_says_what_to_set() -> None:
    things = (
        RocketMQBatchReader(ReadOptions.parse({"topic": "t"}), spark_schema(include_properties=False)),
        RocketMQDataSource({"topic": "t"}),
    )
    asked = [(missing, cloudpickle.dumps(thing)) for missing in ("skylark", "pyarrow", "numpy") for thing in things]
    worker = subprocess.run(
        [sys.executable, "-c", _WORKER], input=pickle.dumps(asked), capture_output=True, timeout=60, check=True
    )
    answers = [json.loads(line) for line in worker.stdout.splitlines()]
    for (missing, _), said in zip(asked, answers, strict=True):
        assert missing in said
        assert f"the driver {sys.executable} (Python {sys.version.split()[0]})" in said
        assert "set PYSPARK_PYTHON" in said


def test_a_worker_with_another_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "0")  # what is set here ends with the test
    rebuild, (module, name, state, driver, version) = pack(RocketMQDataSource({"topic": "t"}))
    assert isinstance(rebuild(module, name, state, driver, version), RocketMQDataSource)
    with pytest.raises(ImportError) as caught:
        rebuild(module, name, state, driver, "99.0")
    assert f"Skylark here is {version} (in " in str(caught.value) and "the driver's is 99.0" in str(caught.value)
    assert "--py-files" in str(caught.value)


def test_this_python_can_be_a_worker() -> None:
    check_worker_python(sys.executable)


def test_a_python_that_is_not_there_is_told_before_the_session_is_used() -> None:
    with pytest.raises(UserError, match=f"cannot run 'no-such-python': .*set PYSPARK_PYTHON={sys.executable}"):
        check_worker_python("no-such-python")


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("3.9\\n\\n", "Python 3.9, the driver 3."),
        (f"{sys.version_info[0]}.{sys.version_info[1]}\\nnumpy trio\\n", "lacks numpy, trio; set PYSPARK_PYTHON="),
    ],
)
def test_another_python_is_told(tmp_path_factory: pytest.TempPathFactory, printed: str, said: str) -> None:
    python = tmp_path_factory.mktemp("bin") / "python"
    python.write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    python.chmod(0o755)
    with pytest.raises(UserError) as caught:
        check_worker_python(str(python))
    assert said in str(caught.value)


def test_decoding_imports_no_pandas() -> None:
    """pyarrow does when it is handed Python or numpy objects: 0.2 s in every new worker."""
    script = (
        "import sys; from tests.sdk.arrow.test_decode import ALL, GOLDEN;"
        "from skylark.spark_connector.styles import decode; from skylark.sdk.arrow.records import Records;"
        "decode(Records(bytes.fromhex(GOLDEN) * 3), 'b', ALL);"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("missing", ["numpy", "pyarrow", "pyspark"])
def test_a_python_without_the_extra_says_so_at_import(missing: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None\nimport pyspark_rocketmq"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    said = found.stderr.splitlines()[-1]
    assert found.returncode == 1
    assert f"{sys.executable} lacks it. Type {install_line('spark')} there" in said
