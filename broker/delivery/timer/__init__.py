"""Messages with a time of delivery: they wait in rmq_sys_wheel_timer and are delivered when they are due.

timed.py      a message on its way into that topic, and out of it again (pure)
pending.py    which messages wait, by the time when they are due (pure)
history.py    what was delivered before the start: the rule, checkpoints, and the search of the log (pure)
restore.py    reads the log and the queue for it
part.py       delivers
recall.py     takes messages back (370)
"""
