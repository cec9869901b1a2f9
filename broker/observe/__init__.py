"""The broker's statistics.

meter.py      a counter with totals of the last minute, hour and day
stats.py      the broker's counters: by topic, by group, in all; transactions that ended, pops that came back, sizes
put_times.py  how long sends take
sampler.py    samples the counters each second
"""
