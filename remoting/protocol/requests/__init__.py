"""Every request that Skylark serves or sends, described once: in files by family, each entry under its code's name.

``GET_MAX_OFFSET = Request(code, header, body, answer's header, answer's body)``. A handler reads the request and makes
its answer with it, a caller asks with it (`remoting.net.call`), and the tests of recorded frames look there for what
belongs to a code. A new request is an entry here, a handler, a caller, and their tests.
"""
