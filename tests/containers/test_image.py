"""The image is built, and its containers serve: messages through each compose file. Takes minutes, as root."""

import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.compose_files import FILES, HARDENED, read_compose
from tests.containers.image import Image, built
from tests.containers.machine import INSIDE, OUTSIDE, THROUGH_PROXY, USER, command
from tests.tidy.tree import ROOT

MOST_BYTES = 150 * 1000 * 1000
TIMEOUT_S = 900

pytestmark = [pytest.mark.nightly, pytest.mark.process, pytest.mark.needs("buildah")]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with built(tmp_path_factory.mktemp("image") / "work") as made:
        yield made


def test_the_image_is_small_and_gives_no_rights(image: Image) -> None:
    assert image.size_bytes <= MOST_BYTES
    assert image.config["User"] == f"{USER}:{USER}"
    assert image.config["Entrypoint"] == ["skylark"]
    assert image.config["StopSignal"] == "SIGTERM"
    home = image.root / "var" / "lib" / "skylark"
    assert (home.stat().st_uid, stat.S_IMODE(home.stat().st_mode)) == (USER, 0o700)
    files = [path for path in image.root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in files if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)] == []
    assert [path for path in files if path.stat().st_uid == USER or path.stat().st_mode & stat.S_IWOTH] == []


def test_the_health_check_is_the_one_of_the_compose_files(image: Image) -> None:
    check: Any = HARDENED["healthcheck"]
    assert image.config["Healthcheck"]["Test"] == check["test"]


def test_help_and_versions_are_printed(image: Image) -> None:
    inside = ["chroot", f"--userspec={USER}:{USER}", str(image.root), "/usr/bin/env", "-i"]
    inside += [f"{name}={value}" for name, value in image.environment.items()]
    for words, text in (
        (["--help"], "Run a broker"),
        (["version"], "extras   console, proxy, metrics, health, acl, tls\n"),
    ):
        done = subprocess.run([*inside, "skylark", *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert text in done.stdout


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_message_goes_through_each_compose_file(file: Path, image: Image, tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text(json.dumps(image.environment), encoding="utf-8")
    done = subprocess.run(
        command(file, image.root, tmp_path), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    services = read_compose(file).services
    texts = sorted([OUTSIDE, INSIDE, *([THROUGH_PROXY] if "proxy" in services else [])])
    assert seen["read_outside"] == seen["read_again"] == texts
    assert sorted({json.loads(line)["body"] for line in seen["read_inside"].splitlines()}) == texts
    if "proxy" in services:
        assert seen["proxy"] == [20000, 20000]
    if "console" in services:
        assert seen["console"] == ["broker-a"]
    for when in ("start_s", "start_again_s", "stop_s", "stop_again_s"):
        assert set(seen[when]) == set(services)
