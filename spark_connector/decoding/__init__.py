"""Stored records to Arrow record batches, in the columns that Spark wants; mqcommon/arrow decodes them.

styles.py      columns in the styles of other sources
json_text.py   maps of texts as JSON
"""
