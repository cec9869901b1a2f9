"""Messages by key: RocketMQ's hash tables on disk.

layout.py      the layout of a file
log_keys.py    the keys of a stretch of the log, hashed
index_file.py  one file
index.py       all of them, following the log
"""
