"""Stored records to Arrow record batches, column by column: no loop over messages, no Spark, no brokers.

decode.py           the record batch of one buffer
records.py          where the fields of each record are
property_pairs.py   where the properties are, with the names that are asked for
columns.py          Arrow arrays of such positions
json_text.py        maps of texts as JSON
"""
