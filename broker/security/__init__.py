"""Who may do what on this broker.

`needs.py` says what each request needs, `audit.py` logs refusals, `peers.py` has the addresses of clients. `accounts/`
are the accounts in files (ACL 1.0), `users/` has users and policies (ACL 2.0); at most one of the two is on.
"""
