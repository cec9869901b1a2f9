"""A transport of kombu, so that Celery works with RocketMQ's brokers (extra ``celery``). See docs/guides/celery.md.

    broker_url = "rocketmq://namesrv:9876,other:9876/"

transport.py  what kombu calls, in the threads of the program: connections, channels, AMQP's words
sessions.py   the sessions of a process and their threads; forks
session.py    one client of a cluster for all connections to it (trio): topics, sends
feed.py       tasks: popped, leased, acknowledged; stream.py: remote control, events and replies, for whoever listens
mailbox.py    what waits for the program's thread
names.py      what names, URLs and times of kombu are in RocketMQ (pure)
"""

from skylark.sdk.integrations.extra import extra

with extra("skylark.integrations.kombu", "celery", "kombu", "celery"):
    from skylark.sdk.integrations.kombu.transport import Transport

__all__ = ["Transport"]
