"""Old files of the log in a bucket: who writes there, who reads, and what.

reads.py          answers what the store asks for messages that only the bucket has; thread-safe
taking.py         which records of a stretch a reader gets (pure)
stretch_cache.py  what was read from the bucket, in memory and on disk
"""
