"""Administration: the client `Admin`, and the command line `mqadmin` on top of it.

client.py           Admin, one method an operation; asking.py: whom it asks; broker_admin_api.py, merge.py
cli.py              the click group, help, suggestions, completion; not_yet.py: RocketMQ's other commands
command.py          from an async function to a click command; params.py: options and their values
commands/           the commands, a family a file
session.py          what a command's function works with; targets.py: which brokers (-b, -c)
render.py           tables and JSON; message_text.py, versions.py: RocketMQ's own spellings
failures.py         an error as the one line that says what to do next
reference.py        docs/mqadmin.md
"""
