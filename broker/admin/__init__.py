"""Requests that only administrators and their tools send, one file per table or subject.

Handlers of clients' requests stand with the data that they change: sends in writing/, pulls and pops in delivery/,
heartbeats and offsets in meta/, figures in observe/.

topics.py groups.py                metadata; replication/ reads both tables in pages (meta/table_pages.py)
access_control.py accounts.py      users and policies; accounts in files
config.py clean.py                 the broker's own options and state; removal of old messages
reset_offsets.py forwarded.py      offsets of a group; requests that are handed on to a group's clients
"""
