"""CRCs of the log's blocks, kept beside the log: they tell which bytes a disk has changed.

block_sums.py   the sums in memory: sealed, attested, dropped (pure)
sum_files.py    on disk: the directory sums; drops what may be stale
"""
