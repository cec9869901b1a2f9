"""The message store: RocketMQ's files, byte for byte. Synchronous; imports neither trio nor the wire protocol.

log/ queue/ index/   the three kinds of files; each package imports only the ones named before it
store.py             the store's public interface: open, put, close
put_result.py        what a put returns
reads.py             its reads, for consumers and for the broker itself
reader.py query.py   reads of a queue; messages by key and by time
expanded.py          inner batches as single records
visible.py           up to where consumers may read while not all is confirmed
filter.py            which messages of a queue a read wants
durable.py checkpoint.py   flushes and checkpoints: how far everything is on disk
abort.py             the marker of a store that is open, and how the last stop ended
recovery.py          brings the files back into agreement after a stop or a crash
retention.py removal.py    which old files go (decisions only), and their removal
check/               finds damage in the store of a stopped broker, and repairs it
"""
