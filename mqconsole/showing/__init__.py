"""Turns answers into plain data and text for pages. Pure.

tables.py     sorts, filters and pages rows
charts.py     series as SVG and as CSV
previews.py   the body of a message as text, JSON, CBOR or bytes
findings.py   the doctor's findings, and brokers that no NameServer lists
work.py       the work that members of a group report
reasons.py    why a group lags, in sentences
search.py     one search over the names of clusters, brokers, topics and groups
texts.py      numbers, sizes, times and durations for people
"""
