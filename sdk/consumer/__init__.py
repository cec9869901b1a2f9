"""Reading messages.

pull.py    PullConsumer: the caller chooses queues and offsets
replicas.py  the choice of the broker of a set to ask
commits.py  committed offsets, kept and retried while the master is down
stream.py  batches of one queue, pulled one ahead of the caller
result.py  results of pulls
member.py  the heartbeats of a pull consumer
"""
