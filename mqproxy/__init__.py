"""A gRPC proxy for RocketMQ 5 clients: it serves apache.rocketmq.v2.MessagingService and keeps nothing on disk.

server.py      the port, limits, start and stop; daemon.py: with health and metrics; certificates.py: which certificate
service.py     the calls; methods.py: the steps around each call: the caller, the request, the answer
sending.py, receiving.py, routes.py, names.py, statuses.py   contents of calls, checked and translated (pure)
stored.py, answers.py, ack_request.py   what is encoded and read without the objects of wire/ (pure)
brokers.py     requests to brokers for receiving; receipt handles; polls.py, popping.py: receive calls; renewals.py
pulling.py     pulls and offsets, for clients that choose queues themselves
registrations.py  the clients that brokers list, and requests of tools to these clients
transactions.py  half messages, their ends, and brokers' questions about them
sessions.py    the user of a call, and clients of the SDK that sign as this user; signatures.py (pure); ending.py
clients.py     the known clients, and their settings; telemetry.py: commands to them; users.py: users, remembered
metrics.py     counts of calls, clients and renewals
metadata.py    routes, topics and groups, cached; shared.py: one request for all who wait for it
near.py        a proxy in the process of its broker; instances.py: several proxies at one port; options.py
"""

if __name__ == "mqproxy":
    from skylark.old_names import lend

    lend(__name__)
