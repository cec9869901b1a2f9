"""Pop consumption: the broker chooses messages for a group's consumers, and hides them until they are acknowledged.

records.py    what is written to the revive log: check points of popped messages, and acknowledgements (pure)
inflight.py   which messages are popped and not acknowledged, from those records (pure)
commits.py    how far a group's offsets may be committed, and where the revive log is read from at a start (pure)
revived.py    the copy of a message that comes back (pure)
log.py        writes the revive log, and reads it at a start
positions.py  where the next pop of a group begins in each queue
asked.py      what the requests have in common: their checks
found.py      messages for one request, and its answer
held.py       requests that wait for messages (long polling)
pops.py       200050, 200052, 200054 to 200056
acks.py       200051, 200053, 200151
reviving.py   lets messages come back when their time is over

The state of all groups is in the log of messages: a check point is written before a pop is answered, an acknowledgement
before it is. So it survives whatever the log survives, and slaves have it: a new master reads the revive log. Committed
offsets follow when the check points before them are on disk and with the slaves. So a crash that takes the end of the
log takes no message that was popped: it is popped again.
"""
