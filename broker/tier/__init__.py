"""Old files of the log in a bucket: who writes there, who reads, and what.

tier.py           the part that decides when what is written, and how far files of the log may be removed
owner.py          the steps of the owner: manifests, tails, metadata, retention
upload.py         makes the objects of one file, purge.py makes them again without deleted topics
worker.py         runs both in a process of its own, which child.py starts; tasks.py: what is asked of it
guard.py          keeps a broker whose log does not fit the bucket from storing messages
reads.py          answers what the store asks for messages that only the bucket has
taking.py         which records of a stretch a reader gets (pure)
stretch_cache.py  what was read from the bucket, in memory and on disk
"""
