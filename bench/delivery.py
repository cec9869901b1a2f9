"""All benches of deliveries: timed messages, transactions, pops, SQL filters, traces.

    python -m bench.delivery [timers transactions pop sql trace]

Each is a module of its own, `bench/delivery_<name>.py`, with options.
"""

from bench.one_by_one import run_all

if __name__ == "__main__":
    run_all("delivery", ("timers", "transactions", "pop", "sql", "trace"), __doc__.splitlines()[0])
