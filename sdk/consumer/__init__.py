"""Reading messages.

pull.py    PullConsumer: the caller chooses queues and offsets, or assigns queues and polls; push.py: PushConsumer
reader.py  one pull of a consumer; replicas.py: the choice of the broker of a set to ask
stream.py  batches of one queue, pulled one ahead of the caller
assigned.py  what `poll` returns of several queues; share.py: how many of each (pure)
beginning.py  where a group begins that has committed nothing
commits.py  committed offsets, kept and retried while the master is down
result.py  results of pulls
member.py  the heartbeats of a pull consumer
"""
