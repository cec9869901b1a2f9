"""Old files of the log in a bucket: who writes there, and what.

tier.py       the part that decides when what is written, and how far files of the log may be removed
upload.py     makes the objects of one file; worker.py and child.py run it in a process of its own
"""
