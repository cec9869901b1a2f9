"""Who may do what on this broker.

`access.py` has what a request needs and other things that both kinds share, `audit.py` logs refusals. `accounts/` are
the accounts in files (ACL 1.0), `users/` has users and policies (ACL 2.0); at most one of the two is on.
"""
