"""Clients need nothing that only Linux has: they run in a process without it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from skylark.testing import Cluster
from tests.tidy.tree import ROOT

SIZES = [len(b"small"), len(b"with a key"), len(b"large" * 500_000)]


@pytest.mark.process
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_clients_of_all_flavours_run_on(system: str, tmp_path: Path) -> None:
    with Cluster(home=tmp_path) as cluster:
        # A SimpleConsumer does not wait for its topic, as a PushConsumer does.
        cluster.create_topic("popped")
        program = [sys.executable, "-m", "tests.support.other_system", system, cluster.nameserver, str(tmp_path)]
        ended = subprocess.run(program, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert ended.returncode == 0, ended.stderr
    got = json.loads(ended.stdout)
    assert got.pop("credentials") == "a"
    assert {flavour: sorted(ways) for flavour, ways in got.items()} == {
        "trio": ["broadcast", "pop", "pull", "push"],
        "asyncio": ["push"],
        "threads": ["push"],
    }
    for ways in got.values():
        assert sorted(ways["push"]) == SIZES
    assert sorted(got["trio"]["broadcast"]) == sorted(got["trio"]["pop"]) == SIZES
    assert got["trio"]["pull"] == SIZES[2:]
