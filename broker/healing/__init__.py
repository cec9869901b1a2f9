"""Damage of this broker's disk: found by a scrub and by reads, judged, and repaired from other replicas."""
