"""What an administrator learns of a cluster: one file a subject, with its reports and the functions that ask for them.

A function takes an `Admin`, and what to ask about. It returns frozen dataclasses with units in their names. `mqadmin`
prints them as tables and JSON, the console shows them, programs use them without parsing either (`skylark.admin`).

report.py    reports as JSON; problems.py: what a report lacks; changes.py: a change at several servers
clusters.py  brokers with their loads (broker_load.py, pure); cluster_topology.py, brokers.py, controllers.py
topics.py    offsets, clusters and groups of topics; counters.py: messages into topics and out of them
users.py     users and policies; accounts.py: accounts in files, and why a client is refused
groups.py    how far groups are, and their settings (all_groups.py: of all); members.py, offsets.py, dead_letters.py
messages.py  messages found, traces (message_report.py: one, pure); reading.py, queues.py: messages of queues
versions.py  the names of RocketMQ's version numbers (pure)
"""
