"""Every request that Skylark serves or sends is described here once, under the name of its code, in files by family.

``GET_MAX_OFFSET = Request(code, header, body, answer's header, answer's body)``. A handler reads the request and makes
its answer with the description, a caller sends the request with it (remoting/net/call.py), and the tests of recorded
frames find the types of each code in it. A new request needs an entry here, a handler, a caller, and their tests.
"""
