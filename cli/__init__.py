"""The command ``skylark``: one command for people, above all other packages.

main.py         the group, with `skylark completion`; each other command is imported when it is called
lazy.py         a click group that imports its commands late
dev/            `skylark dev`: NameServer, broker, proxy and console in one process
send.py         `skylark send`
tail.py         `skylark tail`, with following.py: reading a topic without joining a group
conf.py         `skylark conf`: commented conf files
version.py      `skylark version`
durations.py    times and durations on the command line

The daemons, mqadmin and its doctor are the commands of their own packages.
"""
