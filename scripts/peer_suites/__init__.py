"""The published tests of frameworks and clients, run against Skylark: scripts/peers.

__main__.py  the command: install, start servers, run pytest, print the table
peers.py     the published tests of each peer, and how they are run
results.py   cases, the list of what does not apply, the table
known.txt    that list
cases/       files that give a peer's cases Skylark's address; copied beside the cases, and run by pytest
"""
