"""Replication in a set whose master a Controller elects: all of it is pure.

epochs.py        which master wrote which part of a log, and where two logs part; its file
frames.py        the bytes of RocketMQ's auto-switch HA link
link.py          both ends of that link, without sockets
sync_set.py      the SyncStateSet as its master sees it, and the confirm offset
lease.py         until when a master may acknowledge without news from the Controller
decisions.py     what this broker does after an answer of the Controller
identity_file.py the files that keep this broker's id
"""
