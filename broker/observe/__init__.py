"""What a broker counts, and what it tells about itself.

meter.py        a counter that knows its last minute, hour and day
stats.py        the broker's counters: by topic, by group, in all
replication.py  how far each slave is behind
runtime.py      the answer to brokerStatus
"""
