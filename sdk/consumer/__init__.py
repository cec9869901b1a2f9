"""Reading messages.

pull.py    PullConsumer: the caller chooses queues and offsets, or assigns queues and polls
push.py    PushConsumer: a member of a group; the group shares queues, handlers get messages
reader.py  pulls; replicas.py: the choice of the broker of a set to ask; patience.py: pulls that wait for servers
commits.py committed offsets, kept and retried while the master is down
result.py  results of pulls; outcome.py: results of handlers
beginning.py  where a group begins that has committed nothing
member.py, push_member.py  what brokers are told about a consumer
of a PullConsumer:
stream.py  batches of one queue, pulled one ahead of the caller
assigned.py  what `poll` returns of several queues; share.py: how many of each (pure)
of a PushConsumer:
rebalance.py allocate.py owning.py owned.py locks.py       which queues are this member's
offsets.py local_offsets.py                                its offsets
intake.py window.py ready.py                               messages between pull and handler
calling.py workers.py orderly.py stream_message.py         handlers; elsewhere.py: in threads, or in asyncio
failures.py returns.py                                     what was not consumed
machinery.py settings.py                                    all of them put together; the arguments
"""
