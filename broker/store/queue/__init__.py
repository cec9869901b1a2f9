"""Consume queues: per topic and queue, where its messages are in the commit log.

consumequeue.py  one queue; entry.py has the layout, write.py takes new entries to its files
queues.py        all of them
tags.py          what an entry says of the message's tag
batch_records.py records and entries of a batch, made in one go
start_search.py  where a queue starts after old files of the log are gone
rebuild.py       queues made again from the log
ends.py          what there was at the last checkpoint
"""
