"""`skylark dev`: NameServer, broker, gRPC proxy and console in one process and one event loop.

command.py     the options, the directory, what is printed
servers.py     starts the four servers in order, and stops them in reverse order
first_answers.py   a request to each port: "ready" is printed only when all are answered
demo.py        producers and consumers of `skylark dev --demo`
"""

#: Where the NameServer of `skylark dev` listens. `skylark send`, `tail` and `doctor` ask it by default.
HOST, NAMESRV_PORT = "127.0.0.1", 9876
