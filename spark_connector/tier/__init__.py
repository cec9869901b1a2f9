"""Reading the segments that brokers have uploaded, from their bucket, without a broker.

reader.py      what Spark calls, for batches and streams
directory.py   the sets of a bucket as a source of queues, for planning
cutting.py     tasks along segments (pure)
fetching.py    which bytes a task asks for, and checks
"""
