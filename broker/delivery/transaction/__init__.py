"""Transactions: half messages, which nobody sees before their producer commits them.

halves.py    a half message on its way into the half topic, and out of it (pure)
window.py    which halves are over, and where a restart must begin to read (pure)
ops.py       the bodies of op messages, which say that halves are over (pure)
rules.py     what is due for a half that nobody ended: wait, ask the producer, give up (pure)
ledger.py    the open halves of this broker: ends them, writes op messages, reads all of it again after a start
checks.py    asks producers about halves that stay open
part.py      requests and tasks
"""
