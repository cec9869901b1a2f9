"""The version of Skylark, which setup.cfg reads. On Spark's executors Skylark may be a zip, which has no metadata."""

VERSION = "1.0.0rc1"
