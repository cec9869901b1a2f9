"""What an administrator learns of a cluster: one file a subject, with its reports and the functions that ask for them.

A function takes an `Admin`, and what to ask about. It returns frozen dataclasses with units in their names. `mqadmin`
prints them as tables and JSON, the console shows them, programs use them without parsing either (`skylark.admin`).

report.py      reports as JSON, and their members by JSON's names; versions.py: RocketMQ's version numbers (pure)
problems.py    what a report lacks; asking several servers at once
groups.py      how far groups are; all_groups.py: what brokers tell of all; backlog.py: what waits (pure)
members.py     who is connected, and what members do; offsets.py: resets of groups, and what they would do
dead_letters.py  dead letters, and what was sent again; letter_lines.py: as lines of a file
messages.py    messages found, who has consumed one, traces; message_report.py: a message (pure)
reading.py     messages of queues, read without a group; queues.py: entries of queues, offsets of a time
metadata.py    topics and groups that are users'
"""
