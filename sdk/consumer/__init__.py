"""Reading messages.

pull.py    PullConsumer: the caller chooses queues and offsets
replicas.py  which broker of a set is asked
commits.py  offsets on their way to the master
stream.py  batches of one queue, one pull ahead of the caller
result.py  what a pull brings
member.py  what brokers are told about a pull consumer
"""
