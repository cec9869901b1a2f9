"""All benches of what guards and observes a broker: metrics, TLS, access control, limits, clients that sign.

    python -m bench.guard [metrics tls acl auth limits sign]

Each is a module of its own, `bench/guard_<name>.py`, with options.
"""

from bench.one_by_one import run_all

if __name__ == "__main__":
    run_all("guard", ("metrics", "tls", "acl", "auth", "limits", "sign"), __doc__.splitlines()[0])
