"""The one way into the store, whoever a message comes from: a client, a timer, a transaction, a retry.

writer.py             checks, interceptors, the broker's own properties, then the store
stored_properties.py  the properties under which a message is stored
refusals.py           why a message is not taken
durability.py         when a message is safe, and what its producer is told
group_commit.py acks.py   the ledgers of the disk and of the slaves
"""
