"""Logs of the daemons: lines made and written by a thread, so that neither a slow disk nor a pipe stops the event loop.

options.py        what both daemons can set; the level of each logger, also while the daemon runs
formats.py        a record as one line of text, or of JSON
rotated_file.py   a file that is rotated by size and age
writer.py         starts the log: a handler with a thread
copier.py         lines of child processes, written to stderr by a thread
"""
