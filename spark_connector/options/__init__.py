"""What users write in ``option(...)``: declared once, parsed and checked before anything is read or sent.

connection.py   where the cluster is: reading and writing have these
read.py         `ReadOptions`, with select.py (what is read), stream.py (streams only) and store.py (store directories)
write.py        `WriteOptions`
"""
