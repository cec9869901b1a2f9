"""RocketMQ's commands (4.9 and 5.3) that are not implemented here yet, for error messages and docs."""

_NAMES = """
    addBroker checkRocksdbCqWriteProgress
    dumpCompactionLog exportConfigs exportMetadataInRocksDB exportMetrics exportPopRecord
    getColdDataFlowCtrInfo
    remappingStaticTopic
    removeBroker removeColdDataFlowCtrGroupConfig rocksDBConfigToJson setCommitLogReadAheadMode
    updateColdDataFlowCtrGroupConfig
    updateStaticTopic
"""
NOT_YET = tuple(sorted(_NAMES.split(), key=str.lower))


def name_of_missing(name: str) -> str | None:
    """RocketMQ's spelling of a command that is not implemented yet; None for any other name."""
    return next((known for known in NOT_YET if known.lower() == name.lower()), None)
