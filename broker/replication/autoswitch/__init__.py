"""Replication in a set whose master a Controller elects.

member.py controllers.py  the part: it talks with the Controllers, and changes the role
decisions.py     what this broker does after an answer of the Controller; the lease of a master (pure)
enrolment.py     how this broker gets its id, and keeps it
epochs.py log_epochs.py  which master wrote which part of a log, and where two logs differ (pure); the file of epochs
frames.py link.py session.py  RocketMQ's auto-switch HA link: its bytes, both ends without sockets (pure), the steps
sync_set.py leading.py  the SyncStateSet as its master sees it, and the confirm offset (pure); requests for changes
"""
