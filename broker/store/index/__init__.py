"""The index of messages by key: RocketMQ's hash tables on disk.

layout.py      the layout of a file
log_keys.py    reads and hashes the keys of a range of the log
index_file.py  one file
index.py       all files of a store; follows the log
"""
