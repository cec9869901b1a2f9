"""The published tests of frameworks and clients, run against Skylark: scripts/peers.

__main__.py  the command: install, start servers, run pytest, print the table
peers.py     what of each peer is published, and how it is run
results.py   cases, the list of what does not apply, the table
known.txt    that list
cases/       what gives a peer's cases Skylark's address; copied beside them, and run by pytest
"""
