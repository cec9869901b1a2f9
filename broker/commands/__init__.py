"""The subcommands of ``broker``, which work on the store or the metadata of a stopped broker.

verify_store.py      finds damage in a store, and repairs it
resync_slave.py      has a slave copy its master's messages again
print_cut.py         prints messages that were cut from a slave's log
export_metadata.py   writes the metadata as RocketMQ's JSON files; hands popped messages in flight over to a Java broker
import_metadata.py   replaces the metadata by RocketMQ's JSON files
offline.py           shared parts: the lock, error lines
"""
