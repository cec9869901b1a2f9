"""Transactions: half messages, which nobody sees before their producer commits them.

halves.py    a half message on its way into the half topic, and out of it (pure)
ledger.py    the open halves of this broker: ends them, writes op messages, reads all of it again after a start
checks.py    asks producers about halves that stay open, and gives up those that were asked about too often
transactions.py   requests and tasks
"""
