"""Transactions: half messages, which nobody sees before their producer commits them.

halves.py    half messages: their properties, and the messages that are stored because of them (pure)
ledger.py    the open halves of this broker: ends them, writes op messages, reads all of it again after a start
checks.py    asks producers about halves that stay open, and gives up those that were asked about too often
transactions.py   requests and tasks
"""
