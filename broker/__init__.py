"""The broker: a daemon that stores messages and delivers them to consumers.

broker.py cli.py options.py identity.py  start and stop, the command, its options, names and addresses
part.py assembly.py wiring/              a broker is an ordered list of parts; which parts, and what connects them
writing/ store/                          the way of a message into the store; the store
delivery/                                pulls, pops, delayed and timed messages, transactions
admin/ security/                         requests of tools; who may send which request
replication/ registration/               slaves and their master; NameServers
meta/ tasks/ observe/ metrics/           topics, groups and offsets; periodic work; counters and what exports them
commands/                                subcommands that work on a store offline
"""

if __name__ == "broker":
    from skylark.old_names import lend

    lend(__name__)
