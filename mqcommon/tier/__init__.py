"""Old segments of a commit log in object storage: what broker, Spark and tools need to read and write them.

bucket.py    the interface of a bucket, and its errors
layout.py    the names of objects
manifest.py  what a bucket has of one broker set (pure)
"""
