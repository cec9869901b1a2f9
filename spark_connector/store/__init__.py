"""Reading a store directory, without a broker. Nothing is locked, created or changed.

reader.py      what Spark calls; the messages of a part, for tasks
directory.py   the directory as a source of queues, for planning
scan.py        what the log has after the last entries of its queues
files.py       the files of the log and of queues
"""
