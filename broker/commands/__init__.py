"""The subcommands of ``broker``, which work on the store or the metadata of a stopped broker.

verify_store.py      finds damage in a store, and repairs it
diverged_slave.py    has a slave copy its master's messages again; prints messages that were cut from a slave's log
json_metadata.py     writes the metadata as RocketMQ's JSON files, or replaces it by them; hands popped messages in
                     flight over to a Java broker
rebuild_metadata.py  makes topics and groups anew that the stored messages name
offline.py           shared parts: the lock, error lines
"""
