"""A broker set: the master's log goes to its slaves, byte for byte.

frames.py hello.py link.py session.py acks.py are pure: bytes in, bytes out, time as an argument. master.py and slave.py
are their trio shells; replica.py takes what a slave receives.
"""
