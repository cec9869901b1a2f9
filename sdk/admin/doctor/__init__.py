"""`mqadmin doctor`: facts are gathered from all servers, then each check looks at all facts.

facts.py        what is known of NameServers, brokers and groups
findings.py     what a check says: OK, INFO, WARN or FAIL, and what to do
gather.py       asks the servers; one that does not answer is a fact, too; peek.py: reads their certificates
name_servers.py, brokers.py, certificates.py, copies.py, groups.py   the checks (pure)
checks.py       the list of them; one that goes wrong does not stop the others
"""
