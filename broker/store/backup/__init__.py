"""Backups of an open store, and stores made of backups and of buckets.

manifest.py says what is in a backup, taking.py makes one, restoring.py makes a store of one.
from_bucket.py makes a store of a set's bucket.
"""
