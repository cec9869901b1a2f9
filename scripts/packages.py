"""The sdist and the wheel of a copy of this tree, and fresh virtual environments to try them in."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.daemons import ROOT

# Sends a message to a cluster in its own process, and reads it: the event loop, the wire, the broker's store.
MESSAGE = """
from skylark import Message
from skylark.blocking import Producer, PullConsumer
from skylark.testing import Cluster

with Cluster() as cluster, Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver) as consumer:
    cluster.create_topic("orders", queues=1)
    sent = producer.send(Message("orders", b"a cup of tea"))
    print(consumer.pull(sent.queue, sent.queue_offset).messages[0].body.decode())
"""
RECEIVED = "a cup of tea"


def copy_tree(to: Path, *paths: str) -> None:
    """Copy the files that git tracks in this clone to the directory ``to``; symbolic links are copied as links.

    ``paths``: files or directories of the clone; only tracked files among these are copied. Without them, all are.
    """
    names = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name, follow_symlinks=False)


def build(kind: str, source: Path, to: Path) -> Path:
    """Make the ``wheel`` or ``sdist`` of the tree ``source`` in the folder ``to``, by this Python's setuptools."""
    program = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    return to / run_quietly([sys.executable, "-c", program, to], cwd=source).splitlines()[-1]


def fresh_venv(home: Path, *, lends: Path | None = None) -> Path:
    """Make a virtual environment in ``home``; returns its Python.

    ``lends``: a folder with packages, which the environment finds after its own packages. The environment then has no
    pip, so nothing is downloaded.
    """
    python = home / "bin" / "python"
    options = [] if lends is None else ["--without-pip"]
    run_quietly([sys.executable, "-m", "venv", *options, home])
    if lends is not None:
        (packages,) = home.glob("lib/python*/site-packages")
        (packages / "lent.pth").write_text(f"{lends}\n", encoding="utf-8")
    return python


def run_quietly(command: Sequence[str | Path], cwd: Path = Path("/")) -> str:
    """Run a command without PYTHONPATH, so that Python finds nothing of this clone; returns what the command prints.

    Raises SystemExit with the whole output when the command fails.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{run.stdout}{run.stderr}")
    return run.stdout
