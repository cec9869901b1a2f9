"""What users write in ``option(...)``: declared once, parsed and checked before anything is read or sent.

connection.py   where the cluster is: reading and writing have these
read.py         `ReadOptions`: of batches, streams and store directories
write.py        `WriteOptions`
"""
