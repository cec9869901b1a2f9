"""The broker's statistics.

meter.py      a counter with totals of the last minute, hour and day
stats.py      the broker's counters: by topic, by group, in all; transactions that ended, pops that came back, sizes
put_times.py  how long sends take
sampler.py    samples the counters each second
stats_handlers.py consume_stats.py   requests of tools for these counters, and for the progress of groups
"""
