"""Consume queues: for each queue of a topic, where its messages are in the commit log.

consumequeue.py  one queue
batch_queue.py   one batch queue, whose entries stand for whole batches; batch_search.py is its start_search.py
inner.py         what these entries say of an inner batch
entry.py         the layouts of entries
write.py         writes new entries to the files of a queue
queues.py        all queues of a store
tags.py          the hash of a message's tag, which its entry holds
batch_records.py records and entries of a batch, made in one go
start_search.py  finds where a queue starts after old files of the log are removed
rebuild.py       makes queues again from the log
ends.py          the file queueEnds: first and next offsets at the last checkpoints
"""
