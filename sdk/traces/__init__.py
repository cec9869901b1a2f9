"""Message traces: records of sends and deliveries, in a trace topic in the format of RocketMQ's clients, or in a sink.

records.py      the text, both ways, and the way of one message from its producer to its consumers (pure)
entries.py      entries of producers and consumers, and the records made of them later (pure)
traces.py       keeps entries in bounded memory, and sends them
sink.py         sinks: documents of the records, given to an object in a thread, such as a file of lines of JSON
elasticsearch.py   a sink in Elasticsearch
"""
