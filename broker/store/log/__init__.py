"""The commit log: all messages of the broker, in the order of arrival.

segment.py      files of equal size as one long array of bytes; consume queues use it, too
commitlog.py    appends and reads; reading record by record, to the end of the sound ones
residency.py    reads that refuse to wait for the disk
valid_record.py what a sound record is, and what a torn copy of one looks like
log_files.py    read-only access to the files of a log that may be damaged
"""
