"""The tree that git knows holds what belongs there, and nothing of the machine on which it was written."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.tidy.tree import PACKAGES, ROOT

#: What stands at the top besides the packages. A new name is a decision: say in CONTRIBUTING.md what a folder is for.
FOLDERS = {".ci", ".github", "bench", "conf", "deploy", "docs", "examples", "scripts", "tests"}
FILES = {
    *(".gitignore", ".importlinter", "MANIFEST.in", "pyproject.toml", "ruff.toml", "setup.cfg", "zensical.toml"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "README.zh-CN.md", "SECURITY.md"),
    *("kombu_rocketmq.py", "pyspark_rocketmq.py"),
}
# Absolute paths only: store/check/verify.py names a file of the project.
OF_A_MACHINE = re.compile(rb"(?<![\w.}*~-])/(?:work|root|check|home/\w+|Users/\w+)/[\w.-]*")


def committed() -> list[str]:
    """The paths of the files that git knows, those that are only staged included."""
    run = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.rstrip("\0").split("\0")


def test_the_top_of_the_tree_has_only_known_names() -> None:
    assert {path.partition("/")[0] for path in committed()} == {*PACKAGES, *FOLDERS, *FILES}


def test_no_file_names_a_path_of_a_developers_machine() -> None:
    paths = [ROOT / path for path in committed() if ROOT / path != Path(__file__)]
    # A link of skylark/ leads to a folder; a file that was deleted may still be in git's index.
    found = {path: OF_A_MACHINE.findall(path.read_bytes()) for path in paths if path.is_file()}
    assert {path: names for path, names in found.items() if names} == {}


# Apart, so that this file names no such path either.
WORK = b"work"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"cd /%b/tree" % WORK, [b"/%b/tree" % WORK]),
        (b'"/root/.cache"', [b"/root/.cache"]),
        (b"file:///home/ada/clone", [b"/home/ada/clone"]),
        (b"store/check/verify.py, ~/%b/x, $HOME/%b, /homepage/, /path/to/clone" % (WORK, WORK), []),
    ],
)
def test_a_path_of_a_machine_is_told_from_a_path_of_the_project(text: bytes, named: list[bytes]) -> None:
    assert OF_A_MACHINE.findall(text) == named
