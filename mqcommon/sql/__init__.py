"""RocketMQ's SQL92 expressions, which choose messages by their properties. Pure.

tokens.py      an expression as words, numbers and texts, each with its place
nodes.py       what an expression consists of, and the checks that RocketMQ makes when it reads one
parser.py      from tokens to nodes, with RocketMQ's grammar and limits on length, depth and number of terms
The broker evaluates expressions (broker/delivery/sql); the SDK only checks them.
"""
