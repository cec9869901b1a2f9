"""The broker's metadata: topics, groups and consumer offsets (on disk), connected clients (in memory).

journal_format.py    the bytes of the journal and the names of its files; tells a torn tail from damage
journal.py           appends, fsync, recovery, compaction; finds damage in the journal of a stopped broker
metadata.py          all tables and their journal: opens them and takes snapshots
table.py             journalled data: tables with rows by name, and single values; begin here to add a table
topics.py groups.py consumer_offsets.py delay_offsets.py auth.py     the tables, each with its own rules
json_files.py        RocketMQ's own files, to and from the records of the journal
clients.py client_handlers.py        producers and consumers by group and connection; heartbeats, notices of changes
offset_handlers.py offset_resets.py  requests for offsets; offsets set while consumers run
pull_positions.py table_pages.py     how far connected consumers have pulled; tables in pages, for slaves
"""
