"""The broker's statistics.

meter.py      a counter with totals of the last minute, hour and day
stats.py      the broker's counters: by topic, by group, in all
sizes.py      sizes of messages, for metrics only
put_times.py  how long sends take
delivered.py  transactions that ended, pops that came back
stats_handlers.py consume_stats.py   requests of tools for these counters, and for the progress of groups
"""
