"""Reading from brokers: ranges are planned on the driver, each is read in a task.

planning.py       which topics and queues are read, and which ranges of them
pushdown.py       what the filters of a query need
batch_reader.py   partitions, and the record batches of each
pulling.py        the bytes of a range
read_columns.py   the columns of a query, and values of bodies
dead_letters.py   messages that cannot be decoded, sent to another topic
data_loss.py      what happens when messages that should be read do not exist
"""
