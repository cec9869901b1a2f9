"""The list of a broker's parts, and all subscriptions: who is told of what.

wiring.py       the parts in their order
core.py         what many parts share, and what the role means for it
replication.py  the parts of a set of brokers
"""
