"""Runs benches one after another, each as a process of its own."""

import argparse
import subprocess
import sys
from collections.abc import Sequence


def run_all(family: str, names: Sequence[str], description: str) -> None:
    """Run ``bench/<family>_<name>.py`` for each of ``names`` that the command line gives, by default for all."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", default=names, metavar="name", help=f"of {', '.join(names)}; default: all")
    wanted = parser.parse_args().names
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"no such bench: {', '.join(unknown)}")
    failed = []
    for name in wanted:
        print(f"--- bench.{family}_{name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.{family}_{name}"]).returncode:
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")
