"""The broker's metadata: topics, groups and consumer offsets (on disk), connected clients (in memory).

journal_format.py journal_paths.py   the bytes of the journal, a torn tail or damage; the names of its files
journal.py           appends, fsync, recovery: a snapshot and the chain of journals after it
journal_check.py compaction.py       damage in a stopped broker's journal; a snapshot for a long chain
metadata.py          all tables and their journal: opens them and takes snapshots
journalled.py        how a table declares its records and versions
table.py             tables with rows by name, as topics and groups are; begin here to add a table
topics.py groups.py consumer_offsets.py delay_offsets.py auth.py     the tables, each with its own rules
changes.py attributes.py             which rows changed lately; what +key=value,-key does to a topic
json_*.py            RocketMQ's own files: reads and writes them
clients.py client_handlers.py        producers and consumers by group and connection; heartbeats, notices of changes
offset_handlers.py offset_resets.py  requests for offsets; offsets set while consumers run
pull_positions.py table_pages.py     how far connected consumers have pulled; tables in pages, for slaves
"""
