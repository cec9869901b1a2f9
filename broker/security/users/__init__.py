"""Users and policies, RocketMQ's ACL 2.0.

`policies.py` decides, and is pure; `checks.py` checks what administrators send; `guard.py` finds who sent a request,
and asks the policies about the needs that `../access.py` finds. `first_users.py` makes the first users, and the users
of an ACL 1.0 file. The tables are in meta/auth.py, the requests in admin/access_control.py.
"""
