"""Delivering messages to consumers: what the pull handler needs besides the store, and delivery later, again, in order.

hold.py         pulls that wait for messages (long polling)
cold.py         requests that wait for bytes which are only on disk
filters.py      filters of subscriptions, read once: tags, and SQL92 with sql/
pulled.py       how far connected consumers have pulled
delay/          messages with a delay level
timer/          messages with a time of delivery
retry/          messages that consumers gave back, and dead letters
locks/          queues with one reader
pop/            messages that are hidden until they are acknowledged
sql/            conditions of SQL92 on the properties of messages
reply/          replies to the clients that wait for them
"""
