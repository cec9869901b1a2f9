"""Messages as Arrow record batches and back, column by column: no loop over messages, no brokers, no event loop.

schema.py           the columns of a message
decode.py           the record batch of one buffer of stored records
records.py          where the fields of each record are
inner.py            inner batches: one row for each of their messages
property_pairs.py   where the properties are, with the names that are asked for
columns.py          Arrow arrays of such positions
messages.py         the record batch of message objects
given.py            what a user's table has to send, checked; texts.py: its texts as binary arrays
encode.py           the body of a batch send

This package itself needs nothing; its modules need numpy and pyarrow, the extra ``arrow``.
"""
