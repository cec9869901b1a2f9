"""Fuzzing of running daemons, with honest traffic beside it.

requests.py   requests of all codes, with odd values in their fields and bodies
streams.py    what a hostile peer does with a connection
honest.py     clients whose answers must stay right
"""
