"""What somebody outside gets from each port of each daemon, tried with wire code of its own.

`expected.txt` and `expected_web.txt` say what each identity gets: a request code, a path or a method that a daemon
serves and that is not in these tables fails the suite. `wire.py` is the intruder and imports nothing of Skylark, so
that a fault which both ends of Skylark share is seen; `targets.py` starts the daemons, and notes what they open.
"""
