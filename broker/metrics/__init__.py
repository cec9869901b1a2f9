"""A broker's metrics: collected when they are asked for, from counters that other parts keep.

table.py     names, kinds, units and labels: the only place
counters.py  messages, clients, store, timers, slaves
lag.py       how far groups are behind
exporter_names.py  the names of rocketmq-exporter
runtime.py   the table of brokerStatus (28)
export.py    the part of the broker; its health pages, with or without metrics
"""
