"""The command line ``mqadmin``: administers clusters from a terminal, on top of the SDK's `Admin`.

__main__.py         the entry point; cli.py: the click group, help, suggestions, completion, RocketMQ's commands that
                    are missing
command.py          makes a click command of an async function; params.py: options and their values
commands/           the commands, by family; doctor/: the checks of a whole cluster
session.py          the context of one run of a command, and runs in rounds; scope.py: the brokers of -b and -c
render.py           tables and JSON, RocketMQ's texts for values; message_text.py: for messages
reading.py          a queue as RocketMQ's tool prints it
reshape.py          gives a topic other numbers of queues, step by step; moving.py: copies messages of queues that go
securing.py         the files of a guarded cluster
reference.py        generates docs/mqadmin.md
"""

if __name__ == "mqadmin":
    from skylark.old_names import lend

    lend(__name__)
