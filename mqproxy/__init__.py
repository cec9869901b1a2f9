"""A gRPC proxy for RocketMQ 5 clients: it serves apache.rocketmq.v2.MessagingService and keeps nothing on disk.

server.py      ports, limits, start and stop; thread.py runs it in a daemon
relay.py       in front of gRPC: counts connections, and tells TLS from plain HTTP/2; certificates.py: which certificate
service.py     the calls: the caller, the answer, the status for an error
sending.py, receiving.py, routes.py, names.py, statuses.py   contents of calls, checked and translated (pure)
brokers.py     requests to brokers for receiving; receipt handles; renewals.py: auto renew
pulling.py     pulls and offsets, for clients that choose queues themselves
registrations.py  the clients that brokers list, and requests of tools to these clients
transactions.py  half messages, their ends, and brokers' questions about them
sessions.py    the user of a call, and clients of the SDK that sign as this user; signatures.py (pure), users.py
clients.py     the known clients, and their settings; telemetry.py: commands to them
metrics.py     counts of calls, clients and renewals; grpc_logs.py: bounds the lines that gRPC itself logs
metadata.py    routes, topics and groups, cached
instances.py   several proxies at one port
options.py     the options, under RocketMQ's names; wire/ has the generated messages
"""

if __name__ == "mqproxy":
    from skylark.old_names import lend

    lend(__name__)
