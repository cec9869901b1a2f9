"""The broker's metadata: topics, groups and consumer offsets (on disk), connected clients (in memory).

journal_format.py    the bytes of the journal; tells a torn tail from damage
journal_paths.py     the names of its files
journal.py           appends, fsync, recovery: a snapshot and the chain of journals after it
journal_check.py     finds damage in the journal of a stopped broker
compaction.py        replaces a long chain by a snapshot
metadata.py          all tables and their journal: opens them and takes snapshots
journalled.py        how a table declares its records; single values and versions in the journal
table.py             tables with rows by name, as topics and groups are; begin here to add a table
topics.py groups.py consumer_offsets.py delay_offsets.py auth.py     the tables, each with its own rules
changes.py           which rows of a table changed lately
json_*.py            RocketMQ's own files: reads and writes them, imports from and exports to them
attributes.py        what +key=value,-key does to a topic's attributes
clients.py           producers and consumers by group and connection
client_handlers.py   heartbeats; notices to the members of a group that changed
offset_handlers.py   requests for offsets; offset_resets.py: offsets set while consumers run
pull_positions.py    how far connected consumers have pulled
table_pages.py       tables in pages, for slaves
"""
