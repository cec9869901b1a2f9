"""Administration: the client `Admin`, and the command line `mqadmin` on top of it.

client.py           Admin, one method per operation, and the merging of several brokers' answers; requests.py: which
                    servers it asks
cli.py              the click group, help, suggestions, completion; not_yet.py: RocketMQ's commands that are missing
command.py          makes a click command of an async function; params.py: options and their values
commands/           the commands, one family per file
session.py          the context of one run of a command; targets.py: the brokers that -b and -c choose
render.py           tables and JSON; message_text.py, versions.py: RocketMQ's texts for messages and versions
failures.py         errors as one line that says what to do next
reference.py        generates docs/mqadmin.md
"""
