"""The example units and the container file name what exists."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

UNITS = sorted((ROOT / "conf" / "systemd").glob("*.service"))
CONTAINERFILE = ROOT / "conf" / "container" / "Containerfile"
INSTRUCTIONS = {"ENV", "ARG", "FROM", "COPY", "RUN", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "CMD"}


def commands() -> set[str]:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return {line.partition("=")[0].strip() for line in setup["options.entry_points"]["console_scripts"].split("\n")}


def test_the_units_are_there() -> None:
    names = ["skylark-broker.service", "skylark-mqconsole.service", "skylark-namesrv.service"]
    assert [unit.name for unit in UNITS] == names


@pytest.mark.parametrize("unit", UNITS, ids=[unit.stem for unit in UNITS])
def test_the_manual_installs_each_unit(unit: Path) -> None:
    pages = (ROOT / "docs" / "operate").glob("*.md")
    assert any(f"conf/systemd/{unit.name}" in page.read_text(encoding="utf-8") for page in pages)


@pytest.mark.parametrize("unit", UNITS, ids=[unit.stem for unit in UNITS])
def test_units_start_our_commands_and_wait_until_they_serve(unit: Path) -> None:
    text = unit.read_text()
    found = re.search(r"^ExecStart=/opt/skylark/bin/(\w+) -c /var/lib/skylark/(\w+)\.conf$", text, re.MULTILINE)
    assert found is not None
    assert found[1] == found[2]
    assert found[1] in commands()
    assert (ROOT / "conf" / f"{found[1]}.conf").is_file()
    assert "\nType=notify\n" in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=[unit.stem for unit in UNITS])
def test_systemd_has_nothing_to_say_about_units(unit: Path, tmp_path: Path) -> None:
    # systemd looks whether the command can be run.
    text = unit.read_text().replace("/opt/skylark/bin/", f"{Path(sys.executable).parent}/")
    copy = tmp_path / unit.name
    copy.write_text(text)
    run = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (run.returncode, run.stdout + run.stderr) == (0, "")


def test_the_container_file_names_no_registry_and_starts_a_command() -> None:
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if line and not line.startswith("#")]
    assert {line.split()[0] for line in lines} <= INSTRUCTIONS
    (base,) = [line.partition("=")[2] for line in lines if line.startswith("ARG BASE=")]
    assert "/" not in base
    (command,) = [line for line in lines if line.startswith("CMD")]
    assert re.findall(r'"(\w+)"', command)[0] in commands()
