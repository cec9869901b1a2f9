"""The broker's loops that run beside its requests. Blocking calls go to threads.

flush.py    flushes of the log, checkpoints, building the index
populate_pages.py  makes pages of the log ready ahead of its end, so that appends take no page faults
clean.py    removes old files; has messages refused while the disk is too full
persist.py  makes metadata durable
repeat.py   calls a function at intervals
"""
