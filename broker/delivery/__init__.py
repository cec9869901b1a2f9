"""Delivering messages to consumers: pulls, pops, and delivery later, again, in order.

pull_handlers.py   pulls; query_handlers.py: messages found by key or place
queue_assignment.py   which queues a member of a group reads, when the broker assigns them
hold.py         pulls that wait for messages (long polling)
filters.py      filters of subscriptions, read once: tags, and SQL92 with sql/
delay/          messages with a delay level
timer/          messages with a time of delivery
retry/          messages that consumers gave back, and dead letters
locks/          queues with one reader
pop/            messages that are hidden until they are acknowledged
sql/            conditions of SQL92 on the properties of messages
reply/          replies to the clients that wait for them
"""
