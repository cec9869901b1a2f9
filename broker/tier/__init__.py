"""Old files of the log in a bucket: who writes there, who reads, and what.

tier.py           the part that decides when what is written, and how far files of the log may be removed
upload.py         makes the objects of one file; worker.py and child.py run it in a process of its own
reads.py          answers what the store asks for messages that only the bucket has
taking.py         which records of a stretch a reader gets (pure)
stretch_cache.py  what was read from the bucket, in memory and on disk
"""
