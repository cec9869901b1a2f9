"""Reading messages.

pull.py    PullConsumer: the caller chooses queues and offsets, or assigns queues and polls
push.py    PushConsumer: a member of a group, whose handlers get messages, and the parts that it consists of
simple.py  SimpleConsumer: the broker chooses; popped.py (its messages)
PullConsumer and PushConsumer: reader.py replicas.py read_retry.py (pulls), offsets.py (commits), first_offsets.py,
  member.py (heartbeats and brokers' requests), arrow.py (record batches), decompression.py
PullConsumer: stream.py, batches of one queue; assigned.py, what `poll` returns
PushConsumer: rebalance.py allocate.py ownership.py, which queues are this member's; process_queue.py, messages in
  memory; pull_loop.py popping.py, from pull or pop to handler; workers.py orderly.py, calls of handlers; outcome.py,
  the results of handlers; failures.py, messages that were not consumed; stream_message.py, messages of a stream;
  rates.py, figures by topic; problems.py, what the program learns of failures; settings.py
"""
