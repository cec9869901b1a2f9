"""Streams: micro-batches whose ranges the checkpoint keeps.

reader.py             what Spark calls; admitting_reader.py for PySpark 4.2 and later
driver.py             what each micro-batch takes
admission.py          limits
offsets.py            what the checkpoint says
queues.py             what brokers have at this moment
"""
