"""`mqadmin doctor`: facts are gathered from all servers, then each check looks at all facts.

facts.py          the facts about NameServers, brokers and groups, and a check's findings: OK, INFO, WARN or FAIL
gather.py         asks the servers; a server that does not answer is a fact, too
certificates.py   reads the servers' certificates
examine.py        all of it, for the command and for the console
checks.py         the checks (pure), and the list of all checks; a check that fails does not stop the others
"""
