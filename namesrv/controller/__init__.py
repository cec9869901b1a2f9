"""The Controller: it keeps which broker of a set is the master, and elects another master when that broker dies.

Several Controllers are a Raft group (remoting/raft). replicas.py, commands.py and liveness.py are pure;
controller.py wires them to the group, the port and the brokers.
"""
