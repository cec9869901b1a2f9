"""Pages and changes, and the guard in front of both.

site.py       the guard: rights, tokens, headers, audit; registers pages (HTML and JSON) and changes
compiled_templates.py   the templates, compiled once
asking.py     the parts of an address and the fields of a form, checked
login.py      login and logout          overview.py   clusters, brokers, the drawn topology
topics.py     topics                    groups.py     groups, resets, dead letters
messages.py   messages and traces       system.py     what waits, replicas, accounts, doctor
"""
