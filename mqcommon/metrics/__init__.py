"""Metrics of the daemons, without I/O.

metric.py    what a metric is, a column of its values, and a histogram that is cheap to raise
prometheus_text.py   the text formats of Prometheus, in slices
options.py   the options of metrics and of health pages
"""
