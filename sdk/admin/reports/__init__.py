"""Reports about a cluster: one file a subject, with the dataclasses and the functions that fetch them.

A function takes an `Admin` and the subject, and returns frozen dataclasses whose members have units in their names.
`mqadmin` prints the dataclasses as tables and JSON, the console shows them, and programs use them as objects
(`skylark.admin`).

report.py    reports as JSON; problems.py: gaps in a report; changes.py: a change at several servers
clusters.py  brokers with their loads (broker_load.py, pure); cluster_topology.py, brokers.py, controllers.py
topics.py    offsets, clusters and groups of topics; counters.py: messages into topics and out of them
users.py     users and policies; accounts.py: accounts in files, and why a client is refused
groups.py    progress of groups; all_groups.py: of all groups in one answer a broker; backlog.py: unread messages (pure)
members.py   who is connected, and what members do; offsets.py: resets of groups; metadata.py: users' topics and groups
messages.py  finding messages, traces (message_report.py: a message); dead_letters.py, letter_lines.py: dead letters
reading.py   messages of queues, read without a group; queues.py: entries; findings.py: the doctor's; versions.py
"""
