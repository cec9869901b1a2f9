"""A gRPC server in trio, over the HTTP/2 of remoting/http2 and the transports of remoting/net.

statuses.py    gRPC's status codes, and the error that ends a call with one of them
messages.py    messages in the bytes of a call: prefix, size, compression (pure)
heads.py       headers of requests, and prepared headers and trailers of answers (pure)
call.py        one call, as its handler sees it
connection.py  one connection of a client: reads, runs handlers, sends their answers together, leaves gracefully
server.py      accepts connections, scans them, stops gracefully
limits.py      what clients may use, and what is refused
"""
