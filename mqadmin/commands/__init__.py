"""mqadmin's commands; each file has its FAMILIES: the headings of the help, and the commands under each.

topics                    single topics; lists of topics, ordered topics, shares of queues
cluster, brokers          all brokers with their load; state, options, slaves and files of a broker
groups, offsets           groups, their progress and modes of consumption; the offsets of groups
clients                   connected producers and consumers, and what they say of themselves
message_queries, queues   finding messages by id, key, unique key, offset and time; how a message was consumed
messages                  sending one message, handing one to a consumer, printing messages of queues
dead_letters              delivering dead letters again, and writing them to files
stats                     counters of topics and groups, test messages, what is not consumed
namesrvs, controllers     options and key-value store of NameServers; write permission of brokers; Controllers
users, accounts           who may do what: users of brokers with their policies, accounts in files
logs, doctor, export      levels of loggers; a check of the whole cluster; topics and groups written to files
"""
