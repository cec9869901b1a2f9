"""The index of messages by key: RocketMQ's hash tables on disk.

log_keys.py    reads and hashes the keys of a range of the log
index_file.py  one file, and its layout
index.py       all files of a store; follows the log
"""
