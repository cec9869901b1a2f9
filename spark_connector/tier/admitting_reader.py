"""The stream reader of a bucket for PySpark 4.2 and later. Neighbours: reader.py, stream/admitting_reader.py."""

from skylark.spark_connector.stream.admitting_reader import AdmittingStreamReader
from skylark.spark_connector.tier.reader import TierStreamReader


class AdmittingTierStreamReader(TierStreamReader, AdmittingStreamReader):
    """A stream of a bucket with limits, and with the trigger AvailableNow."""
