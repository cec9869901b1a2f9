"""What is shown, as plain data and text. Pure.

tables.py     sorts, filters and pages rows
charts.py     series as SVG and as CSV
previews.py   the body of a message as text, JSON, CBOR or bytes
findings.py   the doctor's findings, and brokers that no NameServer lists
work.py       what members of a group say that they do
reasons.py    why a group lags, in sentences
search.py     one search over the names of everything
texts.py      numbers, sizes, times and durations for people
"""
