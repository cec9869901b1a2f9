"""A gRPC proxy for RocketMQ 5 clients: it serves apache.rocketmq.v2.MessagingService and keeps nothing on disk.

server.py      ports, limits, start and stop; thread.py runs it in a daemon
relay.py       in front of gRPC: counts connections, and tells TLS from others; certificates.py: which certificate
service.py     the calls: who calls, which answer, which status for which error
sending.py, receiving.py, routes.py, names.py, statuses.py   what calls say, checked and translated (pure)
brokers.py     requests to brokers for receiving; receipt handles; renewals.py: auto renew
pulling.py     pulls and offsets, for clients that choose queues themselves
registrations.py  which clients brokers list, and what tools ask of clients
transactions.py  half messages, their ends, and brokers' questions about them
sessions.py    who calls, and the clients of the SDK that sign as this user; signatures.py (pure), users.py
clients.py     which clients are known, and their settings; telemetry.py: commands to them
metrics.py     what is counted of calls, clients and renewals; grpc_logs.py: what gRPC itself may log
metadata.py    routes, topics and groups, cached
options.py     what can be set, by RocketMQ's names; wire/ has the generated messages
"""

if __name__ == "mqproxy":
    from skylark.old_names import lend

    lend(__name__)
