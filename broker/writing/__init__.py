"""The only way into the store, wherever a message comes from: a client, a timer, a transaction, a retry.

send_handlers.py      the requests of producers
writer.py             checks, interceptors, the broker's own properties, then the store
stored_properties.py  the properties with which a message is stored
refusals.py           the errors for messages that are refused
durability.py         when a message is safe, and the status that its producer gets
group_commit.py       sends that wait for the disk
acks.py               sends that wait for slaves
elected.py            what the Controller's choice of a master means for writes and reads
confirm_waits.py      sends that wait for all members of the SyncStateSet
"""
