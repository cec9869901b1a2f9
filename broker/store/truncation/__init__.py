"""Truncation: the end of a slave's log which its new master does not have is cut off, by tasks/truncate.py.

saved.py       reads the bytes that are cut, and keeps them in files beside the log
intent.py      the file that says that a truncation has begun; the steps on disk, which a start can do again
"""
