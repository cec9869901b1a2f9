"""Sending messages.

producer.py  Producer: what users call; the steps of a send are in docs/how/architecture.md, The way of a send
lane.py      the queue of sends to one topic (or queue): waiting sends become a request; lanes.py: the choice of a lane
pending.py   one waiting send; backlog.py: sends of `send_nowait`; waiting_sends.py: sends that have no lane yet
foreign_thread.py  sends from other threads than the loop's brokers.py   the state of brokers: refreshes routes, probes
suspects, knows which brokers to avoid for some time weak.py      brokers that store with less safety than they should,
and what they stored routing.py   the routes of topics, and the choice of the next broker and queue batches.py   many
messages or a table at once packing.py   compression; timed.py: times of delivery and recalls; requests.py: requests and
replies wire.py      send requests and their answers result.py    SendResult, SendStatus transactional.py
TransactionProducer: what users call for transactions transaction.py    an open transaction, how it ends, and answers to
brokers that ask about it
"""

from skylark.sdk.producer.producer import Producer
from skylark.sdk.producer.result import SendResult, SendStatus

__all__ = ["Producer", "SendResult", "SendStatus"]
