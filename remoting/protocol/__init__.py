"""RocketMQ's remoting protocol without I/O.

command.py      one request or answer
frame.py        a whole frame: length, header type, header, body; picks the header codec
*_header.py     the three header codecs: JSON, ROCKETMQ binary, CBOR
connection.py   bytes of a stream in, commands out
codes.py        request and response codes
headers/        typed ext fields, one dataclass per request or answer
bodies/         typed bodies, and the dialects of JSON they travel in

requests/       each request code with its header and body types, described once
scalars.py      lenient reading of single values
strict_cbor.py  CBOR without tags

Pure: no sockets, no time, no logging. Whatever bytes come in, decoders raise ProtocolError only.
"""
