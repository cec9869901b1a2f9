"""Raft as a pure state machine: messages and ticks come in, what is to be stored, sent and applied goes out.

``raft.py`` is the way in. Nothing here sleeps, sends, writes or asks for the time; remoting/raft does.
"""
