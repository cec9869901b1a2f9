"""Types and lint, as scripts/check runs them."""

import subprocess
import sys

import pytest

from tests.tidy.tree import ROOT


@pytest.mark.parametrize("arguments", [["ruff", "check", "."], ["mypy"]], ids=["ruff", "mypy"])
def test_checker_is_content(arguments: list[str]) -> None:
    run = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
