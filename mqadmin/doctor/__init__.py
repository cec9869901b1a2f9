"""`mqadmin doctor`: facts are gathered from all servers, then each check looks at all facts.

facts.py          what is known of NameServers, brokers and groups, and what a check says of it: OK, INFO, WARN or FAIL
gather.py         asks the servers; a server that does not answer is a fact, too
certificates.py   reads their certificates
checks.py         the checks (pure), and the list of them; a check that fails does not stop the others
"""
