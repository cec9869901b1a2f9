"""TLS: a transport over another transport, settings as RocketMQ's tls.properties has them, and both ends' beginnings.

session.py is a connection that is encrypted; accepting.py tells on the server's side what a client speaks, and
connecting.py is the client's side. contexts.py reads certificates, server.py does it again when files change.
Nothing here is imported unless TLS is switched on.
"""
