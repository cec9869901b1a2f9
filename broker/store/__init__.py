"""The message store: RocketMQ's files, byte for byte. Synchronous; imports neither trio nor the wire protocol.

sums/                the CRCs of blocks of the three kinds of files
log/ queue/ index/   the three kinds of files; each package imports only the ones named before it
store.py             the store's public interface: open, put, read, flush, checkpoint, close
reader.py query.py   reads of a queue; messages by key and by time
expanded.py          expands inner batches into single records
visible.py           up to where consumers may read while not all is confirmed
filter.py            which messages of a queue a read wants
checkpoint.py        how far everything is on disk, and how the last run ended: the files checkpoint and abort
recovery.py          makes the files agree again after a stop or a crash
retention.py removal.py    which old files go (decisions only), and their removal
truncation/          cuts off the end of a slave's log that its new master lacks
check/               finds damage in the store of a stopped broker, and repairs it
"""
