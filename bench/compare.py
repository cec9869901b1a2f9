"""This tree and another commit beside each other: a bench of both, alternately, in one run.

    python -m bench.compare REVISION [--bench send_pull] [--rounds 5] [--same-bench] [-- --n 20000]

Prints the medians of both, their ratio (above 1: this tree is better), and the range of the ratios of single rounds: a
difference that is smaller than the range means nothing. The other commit is checked out in a temporary directory. Each
tree has a Python of its own with the same libraries, whose commands are defined in the tree's setup.cfg: commits before
``skylark`` have another import root. With ``--same-bench`` this tree's bench runs on both products, as it may be newer
than the other commit. What follows ``--`` goes to the bench.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from configparser import ConfigParser
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from scripts.daemons import ROOT

# Row name → the figures of all rounds.
Figures = dict[str, list[float]]
# Of these units, less is better.
LESS_IS_BETTER = ("ms", "s", "us", "instr", "MB")


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """The files of a commit, in a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory() as home:
        tree = Path(home) / "tree"
        made = subprocess.run(
            ["git", "worktree", "add", "--detach", str(tree), revision], cwd=ROOT, capture_output=True, text=True
        )
        if made.returncode:
            raise SystemExit(f"cannot check out {revision}: {made.stderr.strip()}")
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def give_benches(tree: Path) -> None:
    """Replace the benches of ``tree``, another checkout, by those of this tree."""
    for folder in ("bench", "scripts"):
        shutil.rmtree(tree / folder)
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))


class Side:
    """A tree, and the Python that runs its benches and commands."""

    def __init__(self, tree: Path, home: Path) -> None:
        """``home``: an empty folder for the Python, which takes its libraries from this process's environment."""
        if sys.prefix == sys.base_prefix:
            raise SystemExit("run this with .venv/bin/python, which scripts/test makes")
        self.tree = tree
        self.bin = home / "bin"
        self.bin.mkdir(parents=True)
        self.python = self.bin / "python"
        self.python.symlink_to(Path(sys.prefix) / "bin" / "python")
        (home / "lib").symlink_to(Path(sys.prefix) / "lib")
        (home / "pyvenv.cfg").write_bytes((Path(sys.prefix) / "pyvenv.cfg").read_bytes())
        self._write_commands()
        self._check_imports()

    @property
    def env(self) -> dict[str, str]:
        """The environment in which the tree comes before what is installed."""
        return {**os.environ, "PYTHONPATH": str(self.tree), "PATH": f"{self.bin}:{os.environ['PATH']}"}

    def _write_commands(self) -> None:
        setup = ConfigParser()
        setup.read(self.tree / "setup.cfg")
        for line in setup["options.entry_points"]["console_scripts"].split("\n"):
            name, _, place = line.partition(" = ")
            module, _, function = place.partition(":")
            if name:
                script = self.bin / name
                script.write_text(f"#!{self.python}\nfrom {module} import {function}\n{function}()\n")
                script.chmod(0o755)

    def _check_imports(self) -> None:
        """SystemExit unless a program that this Python runs uses the tree's modules."""
        command = [str(self.python), "-c", "import broker; print(broker.__file__)"]
        run = subprocess.run(command, cwd="/", env=self.env, stdout=subprocess.PIPE, text=True, check=True)
        if not Path(run.stdout.strip()).is_relative_to(self.tree):
            raise SystemExit(f"the modules would come from {run.stdout.strip()}, not from {self.tree}")


def measure(side: Side, bench: str, options: Sequence[str]) -> Iterator[tuple[str, str, float]]:
    """``(name, unit, figure)`` of each row of one run."""
    run = subprocess.run(
        [side.python, "-m", f"bench.{bench}", "--json", *options],
        cwd=side.tree,
        env=side.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    if run.returncode:
        raise SystemExit(f"bench.{bench} failed in {side.tree}")
    for line in run.stdout.splitlines():
        found = json.loads(line)
        # Rows have names of packages, which were others in commits before ``skylark``.
        name = found["name"].replace("sdk.aio", "skylark.aio").replace("sdk.blocking", "skylark.blocking")
        yield name, found["unit"], found["ours"]


def compare(sides: Sequence[Side], bench: str, rounds: int, options: Sequence[str]) -> tuple[Figures, Figures]:
    """The figures of both sides, which take turns; who begins alternates, too."""
    found: tuple[Figures, Figures] = ({}, {})
    for number in range(rounds):
        for turn in (0, 1) if number % 2 else (1, 0):
            for name, unit, figure in measure(sides[turn], bench, options):
                found[turn].setdefault(f"{name} [{unit}]", []).append(figure)
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return found


def show(ours: Figures, others: Figures) -> None:
    """Print the table."""
    print(f"{'name':<68} {'this tree':>12} {'other':>12} {'ratio':>6}  range")
    for name in [name for name in ours if name in others]:
        is_less = name.endswith(tuple(f"[{unit}]" for unit in LESS_IS_BETTER))
        single = [b / a if is_less else a / b for a, b in zip(ours[name], others[name], strict=True)]
        print(
            f"{name:<68} {median(ours[name]):>12,.3f} {median(others[name]):>12,.3f} {median(single):>6.2f}"
            f"  {min(single):.2f} to {max(single):.2f}"
        )
    for name in sorted(ours.keys() ^ others.keys()):
        print(f"{name:<68} only in {'this tree' if name in ours else 'the other'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("revision", help="the other commit")
    parser.add_argument("--bench", default="send_pull", help="a module of bench/ that has --json")
    parser.add_argument("--rounds", type=int, default=5, help="how often each tree runs it")
    parser.add_argument("--same-bench", action="store_true", help="run this tree's bench on both products")
    parser.epilog = "What follows -- goes to the bench."
    given = sys.argv[1:]
    mine = given.index("--") if "--" in given else len(given)
    arguments = parser.parse_args(given[:mine])
    with checkout(arguments.revision) as other, tempfile.TemporaryDirectory() as home:
        if arguments.same_bench:
            give_benches(other)
        sides = Side(ROOT, Path(home) / "ours"), Side(other, Path(home) / "other")
        show(*compare(sides, arguments.bench, arguments.rounds, given[mine + 1 :]))


if __name__ == "__main__":
    main()
