"""The options of users, as in ``option(...)``: declared once, parsed and checked before anything is read or sent.

connection.py   where the cluster is: reading and writing have these
formats.py      what bodies are: checks that reading and writing share
read.py         `ReadOptions`: of batches, streams and store directories
write.py        `WriteOptions`
"""
