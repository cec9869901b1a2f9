"""mqadmin's commands; each file has its FAMILIES: the headings of the help, and the commands under each.

topics                    single topics; lists of topics, ordered topics, shares of queues
cluster, brokers, backups all brokers with their load; state, options, slaves and files of a broker; its backups
groups, offsets           groups, their progress and modes of consumption; the offsets of groups
clients                   connected producers and consumers, and what they say of themselves
message_queries, queues   finding messages, who consumed a message, handing a message to a consumer
messages, dead_letters    sending and printing messages; delivering dead letters again, writing them to files
stats                     counters of topics and groups, test messages, what is not consumed
namesrvs, controllers     options and key-value store of NameServers; write permission of brokers; Controllers
shrinking, static_topics  draining brokers, fewer queues of a topic; topics with a fixed number of queues
clone, topology           a broker's topics on another broker; sets, topics and groups as a table and a picture
tier, route_diff          what brokers have in buckets, and the way back from there; differences between NameServers
users, accounts, securing who may do what: users with policies, accounts in files; the files of a guarded cluster
logs, doctor, export      levels of loggers; a check of the whole cluster; topics and groups written to files
"""
