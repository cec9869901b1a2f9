"""Request and reply: a reply goes to the client that waits for it.

part.py  takes replies (324, 325), pushes them on the connection of the client that asked (326), and stores them
"""
