"""Replication in a broker set: slaves copy the master's log byte for byte, and its tables.

role.py replication.py                 the role state machine; the part that runs the master's or the slave's side
frames.py hello.py link.py session.py  the protocol of the HA link: pure, bytes in, bytes out, time as an argument
plain_dialogue.py                      how a connection without Controllers begins
master.py slave.py                     the two ends of the HA link, in trio
replica.py whole_records.py            the slave's log and queues
find_master.py known_master.py         where a slave's master is
slave_sync.py master_api.py watch_metadata.py  the tables: topics, groups, offsets
members.py offset_hand_over.py         slaves that act as masters
set_requests.py                        requests among the members of a set, and what a slave refuses
stats.py                               how far slaves lag
autoswitch/                            sets whose master the Controllers choose
"""
