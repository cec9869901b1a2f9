"""mqadmin's commands, a family a file; each file names its FAMILY and lists its COMMANDS.

topics.py       create, change, delete, list, route and offsets of topics
cluster.py      all brokers with their load
brokers.py      state and options of brokers
groups.py       consumer groups and how far they are
connections.py  connected producers and consumers
messages.py     finding messages by id, key, unique key and place
consume.py      sending one message, printing messages of queues
namesrvs.py     options and key-value store of NameServers; write permission of brokers
export.py       what brokers know, as files
"""
