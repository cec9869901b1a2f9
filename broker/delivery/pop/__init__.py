"""Pop consumption: the broker chooses messages for a group's consumers, and hides them until they are acknowledged.

pure: records.py (the records of the revive log), inflight.py (popped and unacknowledged messages, from those records,
  and the offsets that may be committed), java.py (the records of a Java broker)
log.py        writes the revive log, and reads it at a start; positions.py: where the next pop of a group begins
checks.py     checks of requests; finder.py: the messages for a request; held_pops.py: requests that wait
pops.py       200050, 200052, 200054 to 200056; acks.py: 200051, 200053, 200151
state.py      the state that these modules share
reviving.py   lets messages come back when their time is over; copies.py: stores their copies
java_takeover.py     takes over the pops of a Java broker whose store this broker opens

The state of all groups is in the log: a check point is written before its pop is answered, and an acknowledgement is
written before it is answered. So the state is as durable as the log, and slaves have it. Offsets are committed once the
check points before them are on disk and on the slaves: if a crash loses the end of the log, messages are only popped
again.
"""
