"""The only way into the store, wherever a message comes from: a client, a timer, a transaction, a retry.

send_handlers.py      the requests of producers
writer.py             checks, interceptors, the broker's own properties, then the store
stored_properties.py  the properties with which a message is stored
light.py              light queues: messages that are put into more than one queue
refusals.py           the errors for messages that are refused
durability.py         when a message is safe, and the status that its producer gets
waits.py              sends that wait for the disk, for slaves, or for the whole SyncStateSet
elected.py            what the Controller's choice of a master means for writes and reads

A plain send passes, in this order: `Writer.put`, `MessageStore.put` (the bytes are in the mapped log now, and the entry
in the queue), then `Durability.when_safe`, which calls back when the answer may be sent. Without SYNC_FLUSH and
SYNC_MASTER that is at once. With SYNC_FLUSH the send is a row of `GroupCommit` until `tasks/flush.py` has synced the
log (`Flusher.flush`, `MessageStore.flush`, `CommitLog.flush`); with SYNC_MASTER it is then a row of `AckLedger`.
"""
