"""Delivering messages to consumers: pulls, pops, and delivery later, again, in order.

pull_handlers.py   pulls; query_handlers.py: messages found by key or place
queue_assignment.py   which queues a member of a group reads, when the broker assigns them
held_pulls.py   pulls that wait for messages (long polling)
filters.py      filters of subscriptions, read once: tags, and SQL92 with sql_code.py
delayed_delivery.py   messages with a delay level
timed_delivery.py   messages with a time of delivery; recall.py: their producers take them back
redelivery.py   messages that consumers sent back, and dead letters
queue_locks.py  queues with one reader
pop/            messages that are hidden until they are acknowledged
replies.py      replies to the clients that wait for them
"""
