"""A real disk of a few megabytes: a file with ext4 in it, mounted; else memory (tmpfs). Needs root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(home: Path, mib: int) -> Iterator[Path]:
    """A directory of ``home`` that has so much room and no more; the test is skipped where nothing can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    at = home / "disk"
    at.mkdir()
    image = home / "disk.img"
    with image.open("wb") as file:
        file.truncate(mib << 20)
    tried = _run("mkfs.ext4", "-q", "-m", "0", str(image)) or _run("mount", "-o", "loop", str(image), str(at))
    if tried:
        refused = _run("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(at))
        if refused:
            pytest.skip(f"nothing can be mounted here: {tried}; {refused}")
    try:
        yield at
    finally:
        left = _run("umount", str(at))
        image.unlink()
        assert not left, left


def _run(*command: str) -> str:
    """Run it; why it failed, "" when it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except FileNotFoundError as error:
        return str(error)
    return f"{command[0]}: {done.stderr.strip() or done.returncode}" if done.returncode else ""
