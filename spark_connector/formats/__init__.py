"""Bodies of messages as values of Spark's types, for the option valueFormat: the struct column ``value``.

format.py           what a format is, and the error of a body that has none of its values
format_spec.py      which format with which schema: picklable, made on the driver
ddl.py              checks the fields of valueSchema, so that errors name them
plain_values.py     values of JSON and CBOR as values of Spark's types, and back
json_cbor.py, avro_format.py, protobuf_format.py   the formats
value_columns.py    Arrow columns of bodies to columns of values, and back

Pure: nothing here knows brokers, options or queries.
"""
