"""Shows Spark's results as a table, and compares results with the CSV."""

from typing import Any

from scripts.demo.flights import Carrier


class Differs(Exception):
    """The numbers do not agree; the text says where."""


def show_carriers(found: dict[str, Any], names: dict[str, str]) -> dict[str, Carrier]:
    """Print the results of the Spark job, and return them in the form of `carriers_of_csv`."""
    queues = found["queues"]
    print(f"  {found['rows']:,} rows from {len(queues)} queues of {len({name for name, _, _ in queues})} brokers")
    print(f"  {'carrier':<32} {'flights':>9} {'mean departure delay':>22}")
    carriers = {}
    for code, flights, departed, delay in found["carriers"]:
        carrier = carriers[code] = Carrier(flights, departed, delay or 0)
        print(f"  {code} {names.get(code, ''):<29} {flights:>9,} {carrier.mean_delay:>18.2f} min")
    return carriers


def compare(who: str, rows: int, found: dict[str, Carrier], expected: dict[str, Carrier]) -> int:
    """How many rows are duplicates. Raises Differs, naming ``who``, when the other rows do not agree with the CSV."""
    for code in sorted({*found, *expected}):
        if found.get(code) != expected.get(code):
            raise Differs(f"carrier {code}: {who} {found.get(code)}, the CSV has {expected.get(code)}")
    return rows - sum(carrier.flights for carrier in expected.values())


def first_of(error: BaseException) -> BaseException:
    """The first leaf of a group that trio made."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
