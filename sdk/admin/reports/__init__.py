"""What an administrator learns of a cluster: one file a subject, with its reports and the functions that ask for them.

A function takes an `Admin`, and what to ask about. It returns frozen dataclasses with units in their names. `mqadmin`
prints them as tables and JSON, the console shows them, programs use them without parsing either (`skylark.admin`).

report.py      reports as JSON; problems.py, asking.py: what a report lacks; changes.py: a change at several servers
groups.py      how far groups are (all_groups.py, backlog.py); members.py: what members do; offsets.py: resets
dead_letters.py  dead letters (letter_lines.py: in files); messages.py: messages (message_report.py), traces
reading.py     messages of queues, read without a group; queues.py: entries of queues, offsets of a time
clusters.py    brokers with their loads (broker_load.py); cluster_topology.py; brokers.py: options, replication
topics.py      offsets and groups of topics; counters.py: messages in and out; metadata.py: topics and groups of users
controllers.py Controllers and their sets; users.py, accounts.py: who may do what; versions.py: version numbers
"""
