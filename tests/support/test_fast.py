"""scripts/test --fast leaves out tests that start processes, and refuses those that do not say so."""

import subprocess
import sys
from pathlib import Path

from scripts.daemons import ROOT

IMPORTS = "import subprocess\n\ndef test_it(): pass\n"
SAYS_SO = "import pytest\n\n@pytest.mark.process\ndef test_it(): pass\n"
HIDES = "import asyncio.subprocess as hidden, sys\n\ndef test_it(): hidden.subprocess.run([sys.executable, '-c', ''])\n"


def test_a_test_that_starts_a_process_is_left_out_or_fails(tmp_path: Path) -> None:
    for name, text in (("imports", IMPORTS), ("says_so", SAYS_SO), ("hides", HIDES)):
        (tmp_path / f"test_{name}.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:xdist",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "--fast",
    ]
    run = subprocess.run([*command, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.returncode == 1
    assert "1 failed, 1 deselected" in run.stdout
    assert "a test that starts a process has the mark `process`" in run.stdout
