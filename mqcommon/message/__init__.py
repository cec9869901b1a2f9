"""Messages, as users see them and as RocketMQ stores and batches them. Pure: no clock, disk or socket.

message.py     Message (to send) and MessageExt (received, decoded only as far as it is read)
queue.py       MessageQueue: topic, broker, queue number
layout.py      where the fields of the commit-log record are: one table
record.py      the record, encode and decode side by side
record_keys.py the keys by which a record is found
columns.py     many records of a buffer at once
batch.py       the body of a batch send
properties.py  the properties string and its reserved names
ids.py         offset message ids and unique keys
compression.py compressed bodies
flags.py       sysFlag bits
javahash.py    Java's String.hashCode, which tag codes and the index use
"""
