"""What all brokers say, asked once every few seconds.

roll.py        which brokers are away, and since when (pure)
checkup.py     how many failures the doctor finds, now and then
pace.py        how fast groups consume (pure)
history.py     series of numbers over a day, bounded (pure)
snapshot.py    what one round has found, as rows of tables (pure)
collector.py   the task that asks; each broker has a deadline of its own
"""
