"""mqadmin's commands; each file has the name of its FAMILY in the help and the list of its COMMANDS.

topics, topic_plans       single topics; lists of topics, ordered topics, shares of queues
cluster, brokers          all brokers with their load; state and options of a broker
groups, group_plans       single groups and their progress; lists of groups, modes of consumption
connections               connected producers and consumers
messages, queues          finding messages by id, key, unique key, offset and time
traces                    what became of a message, if clients trace
consume, printing         sending one message, printing messages of queues
stats, probes, monitoring counters of topics and groups, test messages, what is not consumed
namesrvs                  options and key-value store of NameServers; write permission of brokers
users, policies, accounts who may do what: users of brokers, accounts in their files
logs, doctor              levels of loggers; a check of the whole cluster
replication, cleaning     slaves; files that are not needed any more
export                    topics and groups of brokers, written to files
"""
