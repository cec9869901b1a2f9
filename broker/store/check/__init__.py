"""``broker verifyStore``: finds damage in the store of a stopped broker, and repairs it.

verify.py        reads the log, compares the consume queues with it, and reports each damage
sum_check.py     compares the log with the sums of its blocks
repair.py        repairs the store so that it starts; saves all bytes that it cuts
"""
