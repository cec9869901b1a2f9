"""The only package with sockets: a thin trio shell around the sans-IO protocol.

transport.py  a connection as a stream of bytes: what channels and replication speak over
sockets.py  transports over TCP; no other module touches a socket or its descriptor
in_process.py  transports inside of one event loop
channel.py  one connection, either side: outbox, requests in flight, deadlines
accepting.py  accepts connections within a budget; scanning.py: closes connections that take too long
server.py   accepts connections, handles all requests of one read, sends their answers together
steps.py    long work on the loop, a step at a time
answers.py  answers with a body, cut to the size of a frame
call.py     sends a described request and checks the code of the answer
client.py   connections by address, opened on demand, CBOR offered to each server
daemon.py   signals, graceful stop, logging of a daemon
children.py other daemons that a daemon starts; supervisor.py: several of one kind, kept running
"""
