"""Old segments of a commit log in object storage: what broker, Spark and tools need to read and write them.

bucket.py, opening.py, buckets/   the interface of a bucket; opens and probes one; the kinds of buckets
layout.py, framed.py              the names of objects, the frame of small ones (pure)
manifest.py, manifests.py         what a bucket has of one broker set (pure); finds the newest, creates the next
metadata.py                       the copy of topics, groups and offsets (pure)
segment_index.py                  where each queue's records are in a segment (pure)
keys.py, key_hash.py              which records have a key, and which queue has a place of the log (pure)
file_rows.py, gather.py           a file of the log as sorted columns
index_builder.py                  makes index and keys of these columns (pure)
records.py                        the records of a part of a segment (pure)
restore.py, verify.py             makes the file of the log again; compares what is in a bucket with its manifest
view.py                           reads a set: a queue's messages by offset, time, place and key
"""
