"""Writing topics: each task sends the rows of its partition.

writer.py      what Spark calls, and the producers of a task
rows.py        the columns of a DataFrame, messages of its rows, and their unique keys
bodies.py      bodies and keys of columns that are no bytes or text
once.py        stores each row once, whatever is run again
topic_io.py    the topic that is written: sends, and finds the messages that were sent
"""
