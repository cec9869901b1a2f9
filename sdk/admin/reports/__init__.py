"""What an administrator learns of a cluster: one file a subject, with its reports and the functions that ask for them.

A function takes an `Admin`, and what to ask about. It returns frozen dataclasses with units in their names. `mqadmin`
prints them as tables and JSON, the console shows them, programs use them without parsing either (`skylark.admin`).

report.py      reports as JSON, and their members by JSON's names
problems.py    what a report lacks; asking several servers at once
groups.py      how far groups are, and their settings; all_groups.py: what brokers tell of all their groups
members.py     who is connected, and what members do
offsets.py     resets of groups, and what they would do
dead_letters.py  dead letters, and what was sent again
message_report.py  a message, and its body as text (pure)
messages.py    messages found, who has consumed one, traces
reading.py     messages of queues, read without a group; queues.py: entries of queues, offsets of a time
backlog.py     what a group has not consumed, by topic (pure)
metadata.py    topics and groups that are users'
versions.py    the names of RocketMQ's version numbers (pure)
"""
