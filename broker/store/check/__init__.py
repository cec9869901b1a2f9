"""``broker verifyStore``: finds damage in the store of a stopped broker, and repairs it.

verify.py          reads the whole store and reports each damage
verify_queues.py   compares consume queues with the log; verify_batches.py batch queues
verify_index.py    compares index files with the log
repair.py          makes the store one that starts; saves all bytes that it cuts
"""
