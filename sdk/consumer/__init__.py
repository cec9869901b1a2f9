"""Reading messages.

pull.py    PullConsumer: the caller chooses queues and offsets, or assigns queues and polls
puller.py  one pull of a consumer; replicas.py: the choice of the broker of a set to ask
stream.py  batches of one queue, pulled one ahead of the caller
assigned.py  what `poll` returns of several queues; share.py: how many of each (pure)
start.py   where a new group begins
commits.py  committed offsets, kept and retried while the master is down
result.py  results of pulls
member.py  the heartbeats of a pull consumer
"""
