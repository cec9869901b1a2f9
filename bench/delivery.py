"""All benches of deliveries, one after another: timed messages, transactions, pops, SQL filters, traces.

    python -m bench.delivery [timers transactions pop sql trace]

Each is a module of its own, `bench/delivery_<name>.py`, with options.
"""

import argparse
import subprocess
import sys

NAMES = ("timers", "transactions", "pop", "sql", "trace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="name", help=f"of {', '.join(NAMES)}; default: all")
    names = parser.parse_args().names
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"no such bench: {', '.join(unknown)}")
    failed = []
    for name in names:
        print(f"--- bench.delivery_{name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.delivery_{name}"]).returncode:
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
