"""Accounts in files, RocketMQ's ACL 1.0: plain_acl.yml, and the files in the folder acl/ beside it.

`rules.py` decides, with `permissions.py` and `addresses.py`; `account_file.py` makes accounts of a YAML document, and
`edits.py` changes such a document: these are pure. `files.py` reads and writes the files, and `guard.py` has the rules
in force, and asks them about each request. The requests of administrators are in admin/accounts.py.
"""
