"""RocketMQ's remoting protocol without I/O.

command.py      one request or answer
frame.py        a whole frame; picks one of the header codecs: json_header.py, rocketmq_header.py, cbor_header.py
connection.py   bytes of a stream in, commands out
codes.py        codes of answers
header.py       the base of typed ext fields
body.py         the base of typed bodies; dialect.py has the forms of JSON they travel in, bounded_body.py their limits
lazy_dataclass.py  what makes headers and bodies dataclasses, at little cost for the start of a process
request.py      what the description of a request consists of
rights.py       what a request needs of its sender
requests/       each request, described once: a file a family, with codes, fields, bodies and answers side by side
scalars.py, strict_cbor.py  lenient reading of single values; CBOR without tags

Pure: no sockets, no time, no logging. Whatever bytes come in, decoders raise ProtocolError only.
"""
