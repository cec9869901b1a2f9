"""mqadmin's commands, one family per file; each file has the name of its FAMILY and the list of its COMMANDS.

topics.py       create, change, delete, list, route and offsets of topics
topic_plans.py  lists of topics, ordered topics, shares of queues
cluster.py      all brokers with their load
brokers.py      state and options of brokers
groups.py       consumer groups and their progress
group_plans.py  lists of groups, and how a group consumes a topic
connections.py  connected producers and consumers
messages.py     finding messages by id, key, unique key and queue offset
consume.py      sending one message, printing messages of queues
namesrvs.py     options and key-value store of NameServers; write permission of brokers
stats.py        messages in and out of topics and groups
probes.py       test messages, and how long they take
monitoring.py   what groups have not consumed, again and again
export.py       topics and groups of brokers, written to files
"""
