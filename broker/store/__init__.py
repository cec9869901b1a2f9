"""The store: sync, knows no trio and no wire. RocketMQ's files, byte for byte.

segment.py       files of equal size as one long array
commitlog.py     all messages of the broker, in the order they came
consumequeue.py  per topic and queue: where its messages are in the commit log
index.py         messages by key (hash slots)
checkpoint.py    how far everything is on disk
recovery.py      from what a stop or crash left to a store that can go on
residency.py     reads that refuse to wait for the disk
reader.py        reads of a queue: tag filter, limits, RocketMQ's statuses
query.py         by key, by time
store.py         the store as its users see it
"""
