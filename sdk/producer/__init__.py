"""Sending messages.

producer.py  Producer: what users call
lane.py      the queue of sends to one topic (or queue): what waits is one request; lanes.py: which lane to take
targets.py   which broker and queue get the next request of a lane
nowait.py    sends without waiting: ticket.py, backlog.py, lines.py, elsewhere.py
pending.py   one waiting send; alarm.py: a call at the earliest of several times
brokers.py   the state of brokers: refreshes routes, probes suspects; faults.py: brokers to avoid for some time (pure)
bulk.py      checks and batches for `Producer.send_many`; arrow.py: of tables; batches.py: sends both
pick.py      the choice of the next broker and queue (pure)
wire.py      send requests and their answers
result.py    SendResult, SendStatus
transactional.py  TransactionProducer: what users call for transactions; transaction.py: an open one, and how it ends
halves.py    sends the messages of open transactions; checking.py: answers brokers that ask how one ended
"""

from sdk.producer.producer import Producer
from sdk.producer.result import SendResult, SendStatus

__all__ = ["Producer", "SendResult", "SendStatus"]
