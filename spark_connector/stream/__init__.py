"""Streams: micro-batches whose ranges the checkpoint keeps.

reader.py             what Spark calls; admitting_reader.py for PySpark 4.2 and later
driver.py             where a query starts, what each micro-batch takes, and what brokers have at this moment
arrivals.py           how an idle stream learns that a message has come
report.py             what the progress of a query says besides offsets: pure
offsets.py            what the checkpoint says, and how limits are shared: pure
"""
