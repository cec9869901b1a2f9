"""A gRPC proxy for RocketMQ 5 clients: it serves apache.rocketmq.v2.MessagingService and keeps nothing on disk.

options.py     what can be set, by RocketMQ's names
server.py      the gRPC server: ports, limits, stop; relay.py tells TLS from plain connections on one port
service.py     the calls: who calls, which answer, which status for which error
sending.py     messages of SendMessage as messages of the SDK, with RocketMQ's checks (pure)
receiving.py   receive calls, and received messages as clients read them (pure)
brokers.py     requests to brokers for receiving; receipt handles
names.py       names of topics and groups, checked (pure)
routes.py      routes as clients read them (pure)
clients.py     which clients are known, and their settings
metadata.py    routes, topics and groups, cached
statuses.py    which error has which status (pure)
thread.py      a proxy in a thread of a daemon
wire/          generated messages
"""
