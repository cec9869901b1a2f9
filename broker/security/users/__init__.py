"""Users and policies, RocketMQ's ACL 2.0.

`resources.py` and `policies.py` decide, and are pure; `checks.py` checks what administrators send; `login.py` knows who
sent a request, `../needs.py` what it needs, and `guard.py` asks both. `start.py` makes the first users, `migrate.py`
those of an ACL 1.0 file. The tables are in meta/auth.py, the requests in admin/users.py
and admin/policies.py.
"""
