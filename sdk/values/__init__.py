"""Values instead of bytes: what a producer sends and a handler gets, as dataclasses, msgspec, pydantic or plain types.

values.py     `Values`: a type and a format; encodes values into messages, and reads them
plain.py      values of the standard library's types as plain data, and back, with checks
libraries.py  the encoder of a type: plain.py, msgspec or pydantic
handlers.py   handlers whose argument is annotated with a type
"""
