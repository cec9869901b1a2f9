"""The only way into the store, wherever a message comes from: a client, a timer, a transaction, a retry.

send_handlers.py      the requests of producers
admission.py          whether a message is accepted: all reasons against it, and the verdict
writer.py             checks, the broker's own properties, deferral, then the store
stored_properties.py  a message on its way in, and the properties with which it is stored
deferred.py           messages that are delivered later: where they wait, and how they come out again
light.py              light queues: messages that are put into more than one queue
refusals.py           the errors for messages that are refused
durability.py         when a message is safe, and the status that its producer gets
waits.py              answers that wait for the disk, for slaves, or for the whole SyncStateSet
elected.py            what the Controller's choice of a master means for writes and reads

A plain send passes `SendHandlers.send`, `Writer.put`, `MessageStore.put`, `Durability.answer_when_safe`.
"""
