"""Old segments of a commit log in object storage: what broker, Spark and tools need to read and write them.

bucket.py         the interface of a bucket, and its errors
opening.py        opens the bucket of a URL; probes whether a bucket can hold a set
buckets/          the kinds of bucket: object stores, directories
layout.py         the names of objects
framed.py         the frame of small objects (pure)
manifest.py       what a bucket has of one broker set (pure)
manifests.py      finds the newest manifest, creates the next
segment_index.py  where each queue's records are in a segment (pure)
keys.py           which records have a key, and which queue has a place of the log (pure)
records.py        the records of a part of a segment (pure)
view.py           reads a set: a queue's messages by offset, time, place and key
"""
