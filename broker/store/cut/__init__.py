"""Cutting the end of a slave's log which its new master does not have.

survey.py  reads the bytes to cut: their messages, and the queues of these
saved.py   keeps what is cut, beside the log
intent.py  the file that says that a cut has begun
files.py   cuts log and queues on disk
cut.py     one cut of a running store, in steps
resume.py  ends a cut that a crash interrupted
"""
