"""Transactions: half messages, which no consumer sees before their producer commits them.

halves.py    half messages: their properties, and the messages that are stored because of them (pure)
ledger.py    the open halves of this broker: ends them, writes op messages, recovers its state after a start
checks.py    asks producers about halves that stay open, and gives up halves after too many checks
transactions.py   requests and tasks
"""
