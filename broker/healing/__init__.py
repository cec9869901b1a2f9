"""Damage of this broker's disk: found by a scrub and by reads, judged, and repaired from other replicas.

judgement.py   whose bytes of a block are right (pure)
healer.py      the steps of a repair: LogHealer; figures.py counts them
rewriting.py   the medium: reads past the page cache, writes that are checked
repaired_entries.py  gives messages of a repaired block the queue entries that they lack
members.py     who the other replicas are
peers.py       asks other replicas for their bytes; serving.py answers them
scrub.py       reads the whole store again and again; scrub_cycle.py: where and how fast
other_files.py checks all files but the log: queue_files.py, index_files.py, small_files.py, entry_files.py
"""
