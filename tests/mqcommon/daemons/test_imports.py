"""What a start does not import: what only some processes need would make the start of all of them slower."""

import subprocess
import sys

import pytest

# Parsers, extras, and packages that start threads or processes.
HEAVY = [
    *("cryptography", "h11", "javaproperties", "lz4", "multiprocessing", "numpy", "opentelemetry", "pandas"),
    *("pyarrow", "pyspark", "urllib.request", "xml", "yaml"),
]


@pytest.mark.parametrize(
    ("modules", "more"),
    [
        ("broker.cli, broker.broker", ["broker.commands", "mqcommon.sql.parser", "sdk"]),
        ("namesrv.cli, namesrv.namesrv", ["broker", "sdk"]),
        ("sdk.producer, sdk.consumer", ["broker", "namesrv", "click"]),
        ("sdk.aio, sdk.blocking", ["broker", "namesrv", "click"]),
        ("sdk.admin.cli", ["broker", "namesrv"]),
    ],
)
def test_a_start_imports_nothing_that_it_does_not_need(modules: str, more: list[str]) -> None:
    script = f"import {modules}, sys; print([name for name in {[*HEAVY, *more]!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
