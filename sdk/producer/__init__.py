"""Sending messages.

producer.py  Producer: what users call
lane.py      sends of one topic (or queue) that gather while others are in flight, and travel as one batch
pending.py   one of these sends; alarm.py: a call at the earliest of several times
brokers.py   what is known of the brokers: routes asked for again, suspects probed
bulk.py      many bodies at once
pick.py      which broker and queue next (pure)
faults.py    brokers to leave alone for a while (pure)
wire.py      send requests and their answers
result.py    SendResult, SendStatus
"""

from sdk.producer.producer import Producer
from sdk.producer.result import SendResult, SendStatus

__all__ = ["Producer", "SendResult", "SendStatus"]
