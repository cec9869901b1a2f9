"""Metrics of the daemons, without I/O.

metric.py   what a metric is, and a column of its values
buckets.py  a histogram that is cheap to raise
text.py     Prometheus' text format, in slices
options.py  the options that both daemons have
"""
