"""The program of scripts/quickstart: a cluster of real processes, the flights of 2013, a killed master, a Spark job.

__main__.py   the five stages; options.py what can be chosen
flights.py    the data set, and its own statistics
publish.py    sends it, and kills a master meanwhile
spark_job.py  reads it back; a program of its own
switching.py  with --controller or --dledger instead of all that: a master is killed, and another one takes over
rolling.py    with --rolling: all processes of a cluster are replaced by turns (scripts/rolling)
console.py    with --console instead: a cluster with a group that lags, and the console beside it
progress.py   progress lines; stages.py titles and times of the stages
report.py     the table of results, and the comparison with the CSV
"""
