"""The program of scripts/quickstart: a cluster of real processes, the flights of 2013, a killed master, a Spark job.

__main__.py   the five stages; options.py what can be chosen
flights.py    the data set, and its own statistics
publish.py    sends it, and kills a master meanwhile
spark_job.py  reads it back; a program of its own
progress.py   progress lines
report.py     the table of results, and the comparison with the CSV
"""
