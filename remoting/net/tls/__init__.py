"""TLS: a transport over another transport, settings as in RocketMQ's tls.properties, and how each end begins.

options.py    a daemon's options, and how it listens and connects
settings.py   `Tls` of clients; tls.properties
session.py    a connection that is encrypted
server.py     the server's side: certificates that are loaded again, clients with and without TLS on one port
client.py     the client's side
contexts.py   reads certificates, or makes one for tests
Nothing but the options is imported unless TLS is switched on.
"""
