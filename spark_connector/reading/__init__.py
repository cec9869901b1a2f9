"""Reading from brokers: ranges are planned on the driver, each is read in a task.

planning.py       which topics and queues are read, and which ranges of them
pushdown.py       what the filters of a query need
batch_reader.py   partitions, and the record batches of each
pulling.py        the bytes of a range
data_loss.py      what happens when messages that should be read do not exist
"""
