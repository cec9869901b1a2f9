"""Pop consumption: the broker chooses messages for a group's consumers, and hides them until they are acknowledged.

pure: records.py (what the revive log has), inflight.py (what is popped and not acknowledged, from those records, and
  what may be committed), java.py (the records of a Java broker)
log.py        writes the revive log, and reads it at a start; positions.py: where the next pop of a group begins
checks.py     checks of requests; finder.py: messages for one, and its answer; held_pops.py: requests that wait
pops.py       200050, 200052, 200054 to 200056; acks.py: 200051, 200053, 200151
state.py      what all these share
reviving.py   lets messages come back when their time is over; copies.py: stores their copies
java_takeover.py     takes over what a Java broker had popped when this broker opens its store

The state of all groups is in the log: a check point is written before a pop is answered, an acknowledgement before it
is. So it survives what the log survives, and slaves have it. Committed offsets follow when the check points before them
are on disk and with the slaves: a crash that takes the end of the log only has messages popped again.
"""
