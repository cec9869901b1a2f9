"""Damage of this broker's disk: found by a scrub and by reads, judged, and repaired from other replicas.

judgement.py   whose bytes of a block are right (pure)
healer.py      the steps of a repair: LogHealer; figures.py counts them
rewriting.py   the medium: reads past the page cache, writes that are checked
peers.py       asks other replicas for their bytes; serving.py answers them
"""
