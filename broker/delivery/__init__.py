"""Delivering messages to consumers: everything that the pull handler needs besides the store.

hold.py         pulls that wait for messages (long polling)
cold.py         requests that wait for bytes which are only on disk
tag_filters.py  filters of subscriptions, parsed once
pulled.py       how far connected consumers have pulled
"""
