"""The command line ``mqadmin``: administers clusters from a terminal, on top of the SDK's `Admin`.

__main__.py         the entry point; cli.py: the click group, help, suggestions, completion, RocketMQ's missing
                    commands
command.py          makes an async function into a click command; params.py: options and their values
commands/           the commands, by family; doctor/: the checks of a whole cluster
session.py          the context of one run of a command, and runs in rounds; scope.py: the brokers of -b and -c
render.py           tables and JSON, RocketMQ's texts for values; message_text.py: for messages
reshape.py          changes a topic's number of queues, step by step; moving.py: copies messages of removed queues
securing.py         the files of a guarded cluster
reference.py        generates docs/reference/mqadmin.md
"""

if __name__ == "mqadmin":
    from skylark.old_names import lend

    lend(__name__)
