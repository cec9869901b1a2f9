"""mqadmin's commands, one family per file; each file has the name of its FAMILY and the list of its COMMANDS.

topics.py       create, change, delete, list, route and offsets of topics
cluster.py      all brokers with their load
brokers.py      state and options of brokers
groups.py       consumer groups and their progress
connections.py  connected producers and consumers
messages.py     finding messages by id, key, unique key and queue offset
consume.py      sending one message, printing messages of queues
namesrvs.py     options and key-value store of NameServers; write permission of brokers
export.py       topics and groups of brokers, written to files
"""
