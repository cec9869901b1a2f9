"""What all brokers say, asked once every few seconds.

history.py     series of numbers over a day, bounded (pure)
snapshot.py    what one round has found, as rows of tables (pure)
collector.py   the task that asks; each broker has a deadline of its own
"""
