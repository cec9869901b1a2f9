"""A rolling update as Kubernetes does it, with processes: pods with names that stay and addresses that do not.

names.py     what names stand for: this process and its daemons look it up in a file
start/       makes a daemon look there, before it runs
pods.py      a pod, its probe and its stop; a StatefulSet, which replaces its pods one after the other
clusters.py  the StatefulSets of each mode
traffic.py   sends without end, a group of consumers, and what became of each message
update.py    rounds of updates under that traffic, and their table
"""
