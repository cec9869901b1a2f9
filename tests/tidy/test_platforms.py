"""The client side on other systems: the names that it uses are there, and its dependencies have wheels."""

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

#: Folders and files of daemons, of stores and of `skylark dev`, which need Linux.
NEEDS_LINUX = re.compile(
    r"skylark/(broker|namesrv|mqproxy|mqconsole|cli/dev|sdk/testing|mqcommon/daemons|spark_connector/store|remoting/raft)/"
    r"|skylark/remoting/net/(daemon|children|supervisor)\.py|skylark/mqcommon/disk/(direct_reads|libc|mapped_file)\.py"
)
#: What mypy cannot see is used where it exists only: the code looks for it first, or only daemons call it.
LOOKED_FOR = re.compile(
    r'skylark/remoting/net/sockets\.py:\d+: .*("SO_REUSEPORT"|_Calls)'
    r'|skylark/sdk/integrations/kombu/wakeup\.py:\d+: .*"(EFD_\w+|eventfd\w*|POLLIN)"'
    r'|skylark/mqcommon/disk/files\.py:\d+: .*"(chown|O_DIRECTORY|posix_fadvise|POSIX_FADV_RANDOM|pread|bytes)"'
    r'|skylark/remoting/net/tls/contexts\.py:\d+: .*"memfd_create"'
)

# The extras that client programs install; the others are for daemons, tests and releases.
CLIENT_EXTRAS = ("arrow", "formats", "otel", "faststream", "celery", "values", "compression", "tls", "spark")
SYSTEMS = {
    "macOS arm64": ["macosx_11_0_arm64", "macosx_12_0_arm64", "macosx_13_0_arm64", "macosx_14_0_arm64"],
    "macOS x86_64": ["macosx_10_9_x86_64", "macosx_10_15_x86_64", "macosx_12_0_x86_64", "macosx_13_0_x86_64"],
    "Windows amd64": ["win_amd64"],
    "Linux arm64": ["manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64"],
}
#: Published as source only, and pure Python: pip builds these wheels on any system.
SOURCE_ONLY = ("pyspark",)


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_clients_use_no_name_that_is_missing_on(system: str, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "mypy", "--platform", system, "--cache-dir", str(tmp_path), "-p", "skylark"]
    ended = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=False)
    assert "checked" in ended.stdout or "Success" in ended.stdout, ended.stderr
    errors = [line for line in ended.stdout.splitlines() if ": error: " in line]
    assert any(NEEDS_LINUX.match(line) for line in errors), "mypy has looked for what this system lacks"
    assert [x for x in errors if not NEEDS_LINUX.match(x) and not LOOKED_FOR.match(x)] == []


def requirements(extra: str) -> list[str]:
    """What `pip install skylark-mq[extra]` installs; without ``extra``, what it needs in any case."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    text = setup["options.extras_require"][extra] if extra else setup["options"]["install_requires"]
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def test_each_extra_of_clients_exists() -> None:
    assert requirements("")
    assert all(requirements(extra) for extra in CLIENT_EXTRAS)


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("system", SYSTEMS)
def test_clients_and_their_extras_have_wheels_for(system: str, tmp_path: Path) -> None:
    wanted = [*requirements("")]
    for extra in CLIENT_EXTRAS:
        wanted += [line for line in requirements(extra) if not line.startswith(SOURCE_ONLY)]
    tags = [part for tag in SYSTEMS[system] for part in ("--platform", tag)]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    ended = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
                "--dest",
                str(tmp_path),
            ),
            *("--only-binary=:all:", "--python-version", version, "--implementation", "cp", *tags, *wanted),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert not [path.name for path in tmp_path.iterdir() if path.suffix != ".whl"]
