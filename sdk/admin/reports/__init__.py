"""What an administrator learns of a cluster: one file a subject, with its reports and the functions that ask for them.

A function takes an `Admin`, and what to ask about. It returns frozen dataclasses with units in their names. `mqadmin`
prints them as tables and JSON, the console shows them, programs use them without parsing either (`skylark.admin`).

report.py       reports as JSON, and their members by JSON's names
asking.py       several servers, some of which do not answer; changes.py: a change at several servers
clusters.py     each broker with its load; broker_load.py: the load of one, the lag of a slave (pure)
cluster_topology.py  sets, topics and groups
controllers.py  Controllers, the sets whose masters they elect, DLedger groups; topics.py: offsets, clusters and groups
counters.py     messages into a topic and out of it
users.py        users and policies; accounts.py: accounts in files, and why a client is refused
brokers.py      counters, options and replication of brokers
"""
