"""Users and policies, RocketMQ's ACL 2.0.

`resources.py` and `policies.py` decide, and are pure; `checks.py` checks what administrators send; `login.py` knows who
sent a request; `start.py` makes the first user. The tables are meta/auth.py, the requests handlers/admin_users.py and
handlers/admin_policies.py.
"""
