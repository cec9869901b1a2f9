"""Reading messages.

pull.py    PullConsumer: the caller chooses queues and offsets
push.py    PushConsumer: a member of a group; the group shares queues, handlers get messages
reader.py  pulls; replicas.py: the choice of the broker of a set to ask; patience.py: pulls that wait for servers
commits.py committed offsets, kept and retried while the master is down
stream.py  batches of one queue, pulled one ahead of the caller
result.py  results of pulls; outcome.py: results of handlers
member.py, push_member.py  what brokers are told about a consumer
of a PushConsumer:
rebalance.py allocate.py owning.py owned.py locks.py      which queues are this member's
beginning.py offsets.py local_offsets.py                  where they are read from
intake.py window.py ready.py                              messages between pull and handler
calling.py workers.py orderly.py stream_message.py        handlers
failures.py returns.py                                    what was not consumed
settings.py                                               the arguments
"""
