"""SQL92 filters: which messages of a topic a group gets, by their properties.

values.py      texts of properties as numbers, as Java reads them
code.py        an expression as a Python function of a message's stored properties
The grammar is in mqcommon/sql; broker/store/reader.py applies the function to the messages of a queue.
"""
