"""What a broker knows besides messages: topics, groups, consumer offsets (on disk), connected clients (in memory).

journal_format.py    bytes of the journal; tells a torn tail from rot
journal_paths.py     names of its files
journal.py           appending, fsync, recovery: a chain of journals behind a snapshot
compaction.py        a snapshot in place of a long chain
metadata.py          the tables and the journal behind them, as one thing to open and to take a snapshot of
journalled.py        how a table declares its records; single values and versions in the journal
table.py             rows by name, under topics and groups; start a new table here
topics.py groups.py consumer_offsets.py delay_offsets.py     the tables, each with its own rules
json_files.py        RocketMQ's own files: reading and writing them, and seeing that somebody else did
json_import.py       from them to our records; what is not taken over
json_export.py       from our tables to them
attributes.py        what +key=value,-key does to a topic's attributes
clients.py           producers and consumers by group and connection
"""
