"""Messages that consumers could not handle: they are delivered again later, and in the end become dead letters.

policy.py     when: the delay level of the next delivery, or the dead letter topic (pure)
messages.py   the message that is stored for it (pure)
send_back.py  request 36: a consumer gives a message back
resent.py     sends to retry topics, which clients use when 36 fails
"""
