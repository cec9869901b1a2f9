"""The broker's loops that run beside its requests. Blocking calls go to threads.

flush.py    flushes of the log, checkpoints, building the index; makes pages ready ahead of the log's end
block_sealing.py  gives full blocks of the log their sums
clean.py    removes old files; has messages refused while the disk is too full
persist.py  makes metadata durable
ticks.py    calls functions at intervals
"""
