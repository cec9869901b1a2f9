"""CRCs of the log's blocks, kept beside the log: they tell which bytes a disk has changed.

block_sums.py   the sums in memory: sealed, attested, dropped (pure)
"""
