"""The request handlers of the broker, one part per file; a code is handled by one part only.

send.py pull.py offsets.py query.py  messages and offsets of clients
client.py member_notices.py          heartbeats and members of groups
admin_*.py stats.py runtime.py       administration; tables for slaves are sent in pages (pages.py)
broker_name.py refused.py            requests for another broker; requests that this broker does not support
"""
