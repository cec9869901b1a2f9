"""FastStream's own test cases for brokers, which its packages do not contain: from its repository
(github.com/ag2ai/faststream, commit 7c9a125df), tests/brokers/base, tests/asyncapi/base, tests/marks.py and
tests/tools.py. They are under the Apache License 2.0, in LICENSE beside this file. Changed are only imports of each
other, which are relative here. Do not edit them: what does not apply is left out in the tests that use them.
"""
