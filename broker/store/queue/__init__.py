"""Consume queues: for each queue of a topic, where its messages are in the commit log.

consumequeue.py  one queue
batch_queue.py   one batch queue, whose entries stand for whole batches
entry.py         the layouts of entries, and what of an inner batch is in them
queues.py        all queues of a store
tags.py          the hash of a message's tag, which its entry holds
batch_records.py records and entries of a batch, made in one go
bounds_search.py finds where a queue starts and ends after a part of the log is removed
entry_repair.py  finds the entries again that are damaged or whose files are gone
rebuild.py       makes queues again from the log
ends.py          the file queueEnds: first and next offsets at the last checkpoints
"""
