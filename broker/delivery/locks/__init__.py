"""Locks of queues, so that an orderly consumer is the only one of its group that reads a queue (41, 42).

table.py  who owns which queue (pure)
part.py   the requests
"""
