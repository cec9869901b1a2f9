"""A gRPC proxy for RocketMQ 5 clients: it serves apache.rocketmq.v2.MessagingService and keeps nothing on disk.

server.py      ports, limits, start and stop; relay.py tells TLS from plain connections; thread.py runs it in a daemon
service.py     the calls: who calls, which answer, which status for which error
parsing.py     refuses requests that are no messages
sending.py, receiving.py, routes.py, names.py, statuses.py   what calls say, checked and translated (pure)
brokers.py     requests to brokers for receiving; receipt handles; renewals.py: auto renew
clients.py     which clients are known, and their settings
metadata.py    routes, topics and groups, cached
options.py     what can be set, by RocketMQ's names; wire/ has the generated messages
"""
