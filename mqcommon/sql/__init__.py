"""RocketMQ's SQL92 expressions, which choose messages by their properties. Pure.

nodes.py       what an expression consists of, and the checks that RocketMQ makes when it reads one
parser.py      tokens, then nodes, with the grammar of RocketMQ and its limits on length, depth and number of terms
The broker evaluates expressions (broker/delivery/sql); the SDK only checks them.
"""
