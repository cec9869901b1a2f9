"""The version of Skylark. A zip on executors has no metadata of a distribution, so the version is in the code, too."""

VERSION = "0.1.0"
