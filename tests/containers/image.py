"""Builds the image without a registry: from root file systems of Debian's packages, as root. Takes minutes."""

import configparser
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.containers.compose_files import FOLDER
from tests.tidy.tree import ROOT

_DEBIAN, _PYTHON = "bookworm", "3.11"
_NAME = "localhost/skylark"
# What debian:*-slim leaves out of packages, too.
_LEFT_OUT = ("doc", "man", "info", "locale")


@dataclass(frozen=True)
class Image:
    """The image as files, and what it says of itself. ``size_bytes``: as `buildah images` says, uncompressed."""

    root: Path
    config: Mapping[str, Any]
    size_bytes: int

    @property
    def environment(self) -> dict[str, str]:
        pairs = (each.partition("=") for each in self.config["Env"])
        return {name: value for name, _, value in pairs}


@contextmanager
def built(work: Path) -> Iterator[Image]:
    """The image, made in the new folder ``work``, which is removed afterwards."""
    work.mkdir()
    store = ["--root", f"{work}/store", "--runroot", f"{work}/run", "--storage-driver", "vfs"]

    def buildah(*words: str) -> str:
        return _run("buildah", *store, *words).strip()

    def base(name: str, *packages: str) -> None:
        _bootstrap(work / f"{name}.tar", "usr-is-merged", "passwd", "python3", *packages)
        container = buildah("from", "scratch")
        buildah("add", "--quiet", container, str(work / f"{name}.tar"), "/")
        buildah("config", "--cmd", "/bin/sh", container)
        buildah("commit", "--quiet", "--rm", container, f"{_NAME}-{name}")

    wheels = work / "wheels"
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(base, "base"), pool.submit(base, "build", "python3-venv", "binutils")]
        _download(wheels)
        for each in made:
            each.result()
    arguments = {"BASE": f"{_NAME}-base", "BUILD_BASE": f"{_NAME}-build", "PIP_FIND_LINKS": "/mnt", "PIP_NO_INDEX": "1"}
    options = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    options += ["--isolation", "chroot", "--format", "docker", "--volume", f"{wheels}:/mnt:ro"]
    buildah("bud", *options, "--file", str(FOLDER / "Containerfile"), "--tag", _NAME, str(ROOT))
    (listed,) = json.loads(buildah("images", "--json", _NAME))
    size_bytes = _bytes_of(listed["size"])
    config = json.loads(buildah("inspect", "--type", "image", _NAME))["Docker"]["config"]
    container = buildah("from", _NAME)
    # The mount is the container's own file system: nothing is copied.
    root = Path(buildah("mount", container))
    try:
        yield Image(root, config, size_bytes)
    finally:
        buildah("umount", container)
        shutil.rmtree(work)


def _bootstrap(tar: Path, *packages: str) -> None:
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in _LEFT_OUT]
    hooks = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
    _run("mmdebstrap", "--variant=essential", f"--include={','.join(packages)}", hooks, *left_out, _DEBIAN, str(tar))


def _download(to: Path) -> None:
    """The wheels of all packages that the image has, for the Python of the image."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", (FOLDER / "Containerfile").read_text(encoding="utf-8"), re.MULTILINE)
    texts = [
        setup["options"]["install_requires"],
        *(setup["options.extras_require"][each] for each in extras.split(",")),
    ]
    packages = {line for text in texts for line in text.split("\n") if line and not line.startswith("#")}
    options = ["--only-binary=:all:", "--python-version", _PYTHON, "--dest", str(to), "--quiet"]
    # pip builds the wheel of Skylark itself with setuptools.
    _run(sys.executable, "-m", "pip", "download", *options, *sorted(packages), "setuptools")


def _bytes_of(text: str) -> int:
    number, unit = text.split()
    return round(float(number) * {"KB": 1e3, "MB": 1e6, "GB": 1e9}[unit.upper()])


def _run(*words: str) -> str:
    command: Sequence[str] = words
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout
