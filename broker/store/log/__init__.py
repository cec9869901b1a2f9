"""The commit log: all messages of the broker, in the order in which they came.

segment.py      files of equal size as one long array; queues are kept so, too
commitlog.py    appends and reads
residency.py    reads that refuse to wait for the disk
sound.py        what a sound record is
scan.py         from record to record, to where the sound ones end
stored_time.py  when the first message of a file was stored
log_files.py file_size.py   the files as they lie on disk
"""
