"""Logs of the daemons: lines made and written by a thread, so that neither a slow disk nor a pipe stops the event loop.

options.py    what both daemons can set
levels.py     the level of each logger, also while the daemon runs
formats.py    a record as one line of text, or of JSON
file.py       a file that is rotated by size and time; rotation.py says when (pure)
writer.py     the handler with its thread; start.py puts all of this together
start_report.py   what a daemon says while it has no log
silence.py    the SDK, which is silent by default
"""
