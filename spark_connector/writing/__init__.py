"""Writing topics: each task sends the rows of its partition.

writer.py      what Spark calls
columns.py     which columns a DataFrame has; rows.py: messages of them
target.py      the producer of a task
sending.py     sends messages, most of them together
once.py        each row once, whatever is run again, with row_keys.py, task.py (whose rows) and topic_io.py
"""
