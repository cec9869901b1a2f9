"""``broker verifyStore``: finds damage in the store of a stopped broker, and repairs it.

verify.py        reads the log, compares the consume queues with it, and reports each damage
repair.py        makes the store one that starts; saves all bytes that it cuts
"""
