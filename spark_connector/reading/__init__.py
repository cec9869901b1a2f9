"""Reading from brokers: ranges are planned on the driver, each is read in a task.

planning.py       asks brokers for the offsets of their queues, and makes ranges of them
choosing.py       which topics and queues
pushdown.py       what the filters of a query need
batch_reader.py   partitions, and the record batches of each
pulling.py        the bytes of a range
data_loss.py      what happens when messages that should be read do not exist
"""
