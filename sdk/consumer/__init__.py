"""Reading messages.

pull.py    PullConsumer: the caller chooses queues and offsets, or assigns queues and polls
push.py    PushConsumer: a member of a group, whose handlers get messages; machinery.py: its parts
simple.py  SimpleConsumer: the broker chooses; popped.py (its messages), acking.py (acknowledgements)
PullConsumer and PushConsumer: reader.py replicas.py patience.py (pulls), commits.py offsets.py beginning.py (offsets),
  result.py (of pulls), member.py push_member.py (what brokers are told)
PullConsumer: stream.py, batches of one queue; arrow.py, record batches; assigned.py share.py, what `poll` returns
PushConsumer: rebalance.py allocate.py owning.py owned.py locks.py, which queues are this member's; local_offsets.py;
  intake.py window.py ready.py, from pull to handler; calling.py workers.py orderly.py elsewhere.py, handlers;
  arrow_handler.py; stream_message.py stream_elsewhere.py; outcome.py, their results; failures.py returns.py, what was
  not consumed; rates.py, by topic; problems.py, what the program is told; settings.py
"""
