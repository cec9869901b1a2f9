"""Message traces: what becomes of messages, in messages of a trace topic, with the text that RocketMQ's clients write,
or in a sink of the user's choice.

records.py      the text, both ways, and the way of one message from its producer to its consumers (pure)
entries.py      what producers and consumers note, and the records made of it later (pure)
traces.py       keeps what was noted in bounded memory, and sends it
sink.py         sinks: documents of the records, given to an object in a thread, such as a file of lines of JSON
elasticsearch.py   a sink in Elasticsearch
"""
