"""Messages with a time of delivery: they wait in rmq_sys_wheel_timer and are delivered when they are due.

timed.py      a message on its way into that topic, and out of it again (pure)
history.py    what was delivered before the start: the rule, checkpoints, and the search of the log
timed_delivery.py   which messages wait, by the time when they are due; delivers
recall.py     takes messages back (370)
"""
