"""What an administrator learns of a cluster: one file a subject, with its reports and the functions that ask for them.

A function takes an `Admin`, and what to ask about. It returns frozen dataclasses with units in their names. `mqadmin`
prints them as tables and JSON, the console shows them, programs use them without parsing either (`skylark.admin`).

report.py    reports as JSON; problems.py: what a report lacks; changes.py: a change at several servers
clusters.py  brokers with their loads (broker_load.py, pure); cluster_topology.py, brokers.py, controllers.py
topics.py    offsets, clusters and groups of topics; counters.py: messages into topics and out of them
users.py     users and policies; accounts.py: accounts in files, and why a client is refused
groups.py    how far groups are; all_groups.py: what brokers tell of all; backlog.py: what waits (pure)
members.py   who is connected, and what members do; offsets.py: resets of groups; metadata.py: users' topics and groups
messages.py  messages found, traces (message_report.py: one, pure); dead_letters.py, letter_lines.py: dead letters
reading.py   messages of queues, read without a group; queues.py: entries; findings.py: the doctor's; versions.py
"""
