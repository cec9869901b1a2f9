"""The version of Skylark. setup.cfg reads it here; the package's metadata is no source: a zip on Spark has none."""

VERSION = "1.0.0rc1"
