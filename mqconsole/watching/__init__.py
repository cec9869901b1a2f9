"""Asks all brokers once every few seconds, and keeps the answers.

roll.py        which brokers are away, and since when (pure)
checkup.py     the doctor's findings, asked for from time to time
pace.py        how fast groups consume (pure)
history.py     series of numbers over a day, bounded (pure)
snapshot.py    the answers of one round, as rows of tables (pure)
collector.py   the task that asks; each broker has a deadline of its own
"""
