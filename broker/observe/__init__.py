"""What a broker counts; metrics/ shows it under the names of metrics and of brokerStatus.

meter.py      a counter with totals of the last minute, hour and day
stats.py      the broker's counters: by topic, by group, in all; transactions that ended, pops that came back, sizes
put_times.py  how long sends take
stats_handlers.py   samples the counters; requests of tools for them, and for the progress of groups
group_overview.py   further parts of the answer about all groups: members, readers of topics, messages in and out
"""
