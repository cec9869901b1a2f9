"""RocketMQ's remoting protocol without I/O.

command.py      one request or answer
frame.py        a whole frame: length, header type, header, body; picks the header codec
*_header.py     the three header codecs: JSON, ROCKETMQ binary, CBOR
connection.py   bytes of a stream in, commands out
codes.py        codes of answers
header.py       the base of typed ext fields
body.py         the base of typed bodies; dialect.py has the forms of JSON they travel in, bounded_body.py their limits
request.py      what the description of a request consists of
rights.py       what a request needs of its sender
requests/       each request, described once: a file for each family has codes, fields, bodies and answers side by side
scalars.py      lenient reading of single values
strict_cbor.py  CBOR without tags

Pure: no sockets, no time, no logging. Whatever bytes come in, decoders raise ProtocolError only.
"""
