"""The store: sync, knows no trio and no wire. RocketMQ's files, byte for byte.

log/ queue/ index/   the three kinds of files; each imports only those named before it
store.py             the store as its users see it
reader.py query.py   reads of a queue; messages by key and by time
filter.py            which messages of a queue a read wants
durable.py checkpoint.py   how far everything is on disk
recovery.py          from what a stop or crash left to a store that can go on
retention.py removal.py    which old files go (decisions only), and their removal
check/               what is wrong with a store, and its repair
"""
