"""CRCs of the store's files, kept beside them: they tell which bytes a disk has changed.

block_sums.py     the sums of the log in memory: sealed, attested, dropped (pure)
sum_files.py      the sums of the log on disk: the directory sums; drops sums that may be stale
sum_rows.py       the sums of the log as two replicas tell them to each other
growing_sums.py   the sums of queues and index files, which grow at their end
derived_sums.py   the sums of queues and index files on disk
"""
