"""Streams: micro-batches whose ranges the checkpoint keeps.

reader.py             what Spark calls; admitting_reader.py for PySpark 4.2 and later
driver.py             the start of a query, the ends of each micro-batch, and the present offsets of brokers
arrivals.py           how an idle stream learns that a message has come
report.py             what the progress of a query shows besides offsets: pure
offsets.py            the offsets in the checkpoint, and how limits are shared: pure
"""
