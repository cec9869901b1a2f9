"""Messages that consumers could not handle: they are delivered again later, and in the end become dead letters.

messages.py   the message that is stored for it (pure)
send_back.py  request 36: a consumer gives a message back; the delay level of its next delivery (`next_level`)
resent.py     sends to retry topics, which clients use when 36 fails
"""
