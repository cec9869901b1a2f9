"""Broken input for everything that decodes what others wrote: from the network, from files, from conf files.

A decoder either reads its input or raises the error that its callers expect. tests/e2e/fuzz does the same to whole
daemons, over their ports.

targets.py   what is decoded, with good input to begin with
mutate.py    how good input is broken
guided.py    the same targets with atheris, which is led by coverage: ``python -m tests.fuzz.guided TARGET SECONDS``
"""
