"""Administration: the client `Admin`, and the command line `mqadmin` on top of it.

client.py           Admin, one method per operation, and the merging of several brokers' answers; requests.py: which
                    servers it asks
cli.py              the click group, help, suggestions, completion, RocketMQ's commands that are missing
command.py          makes a click command of an async function; params.py: options and their values
commands/           the commands, by family
session.py          the context of one run of a command, and runs in rounds; targets.py: the brokers of -b and -c
render.py           tables and JSON, RocketMQ's texts for values and versions; message_text.py: for messages
reading.py          pulls the messages of queues for commands that print them
failures.py         errors as one line that says what to do next
reference.py        generates docs/mqadmin.md
"""
