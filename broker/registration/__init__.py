"""Registering the broker with NameServers.

registrar.py     when: one task per NameServer
registration.py  what: all topics, in parts or in one frame, or only the changes
outer_api.py     the requests to a NameServer
heartbeats.py    with acting masters: light heartbeats, and which members are alive
pre_online.py    with acting masters: what a master fetches before it registers
"""
