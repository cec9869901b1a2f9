"""The list of a broker's parts, and all subscriptions between them.

wiring.py       the parts in their order
core.py         the store, the tables and other objects that many parts share
replication.py  the parts of a broker that replicates: master, slave, acting master
controlled_link.py, group_link.py   how a broker replicates in Controller mode, and in a DLedger group; link_parts.py
                what all three kinds are made of
"""
