"""HTTP/2 for servers, without I/O (RFC 9113 and RFC 7541).

connection.py     one connection: bytes in, events out; answers in, bytes out; streams and flow control
events.py         what a connection tells its caller
header_blocks.py  header blocks of clients decoded, header blocks of answers prepared
huffman.py        compressed texts in header blocks
frames.py         the layout of frames, and frames that a server sends
limits.py         what a client may ask for, and how often
errors.py         the one error, and its codes

Pure: no sockets, no clock, no logging. Whatever bytes come in, `ServerConnection.receive` returns events or raises
Http2Error. Priorities are ignored, and nothing is pushed.
"""
