"""CRCs of the store's files, kept beside them: they tell which bytes a disk has changed.

block_sums.py     the sums of the log in memory: sealed, attested, dropped (pure)
sum_files.py      these on disk: the directory sums; drops what may be stale
growing_sums.py   the sums of queues and index files, which grow at their end
derived_sums.py   these on disk
"""
