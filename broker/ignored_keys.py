"""RocketMQ's broker keys (4.9 to 5.5) that this broker does not use.

Most of these keys set the sizes of Java's thread pools, buffers and page cache: they are accepted with a warning. Keys
that say where RocketMQ has put messages or tables are in `LIMITED_KEYS`: a broker that ignored them would start
without a part of its messages. A key that comes into use moves to options.py.
"""

from collections.abc import Mapping

from skylark.mqcommon.options.fields import LimitedKey, limited

_KEYS = """
    abortFile accessMessageInMemoryHotRatio accountStatsEnable accountStatsPrintZeroValues ackMessageThreadPoolNums
    ackThreadPoolQueueCapacity adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity
    allowRecallWhenBrokerNotWriteable appendAckAsync appendCkAsync appendTopicForTimerDeleteKey asyncSendEnable
    authConfigPath authenticationMetadataProvider authenticationProvider authenticationStrategy
    authorizationMetadataProvider authorizationProvider authorizationStrategy autoDeleteUnusedStats
    autoMessageVersionOnTopicLen autoMQVersion batchDeleteSubscriptionGroupMaxRate batchDeleteTopicMaxRate
    batchDispatchRequestThreadPoolNums bitMapLengthConsumeQueueExt bottomMostCompressionTypeForConsumeQueueStore
    broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond brokerContainerConfig brokerFastFailureEnable
    cgColdReadThreshold channelNotActiveInterval checkCommitLogOffsetOnRecover checkCRCOnRecover checkSyncStateSetPeriod
    cleanOfflineBrokerInterval cleanRocksDBDirtyCQIntervalMin cleanSwapedMapInterval clearRetryTopicWhenDeleteTopic
    clientAsyncSemaphoreValue clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout
    clientManagerThreadPoolQueueCapacity clientManageThreadPoolNums clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads
    coldCtrStrategyEnable coldDataFlowControlEnable coldDataScanEnable combineCQEnableCheckSelf
    combineCQMaxExtraSearchCommitLogFiles commercialBaseCount commercialBigCount commercialEnable commercialSizePerMsg
    commercialTimerCount commercialTransCount commitCommitLogLeastPages commitCommitLogThoroughInterval
    commitIntervalCommitLog commitLogForceSwapMapInterval commitLogRecoverMaxNum commitLogRollingInterval
    commitLogRollingMinimumSize commitLogSwapMapInterval commitLogSwapMapReserveFileNum compactionCqMappedFileSize
    compactionMappedFileSize compactionScheduleInternal compactionThreadNum compatibleWithOldNameSrv compressedRegister
    concurrentHeartbeatThreadPoolSize connectTimeoutMillis consumerFallbehindThreshold
    consumerManagerThreadPoolQueueCapacity consumerManageThreadPoolNums consumerOffsetUpdateVersionStep
    correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval correctMinOffsetMadviseEnable customizedTopic
    dataReadAheadEnable debugLockEnable defaultMessageRequestMode defaultPopShareQueueNum delayOffsetUpdateVersionStep
    deleteConsumeQueueFilesInterval destroyMapedFileIntervalForcibly disableCallbackExecutor
    disableConsumeIfConsumerReadSlowly disableNettyWorkerGroup disappearTimeAfterStart diskFallRecorded
    dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread duplicationEnable enableAcceleratedRecovery
    enableAsyncReput enableBatchPush enableBroadcastOffsetStore enableBuildConsumeQueueConcurrently
    enableCalcFilterBitMap enableCleanExpiredOffset enableCompaction enableConcurrentHeartbeat enableConnectionMetrics
    enableConsumeQueueExt enableCreateSysGroup enabledAppendPropCRC enableDetailStat enableFastChannelEventProcess
    enableLagAndDlqMetrics enableLiteEventMode enableLitePopLog enableLmqQuota enableLmqStats
    enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMessageStoreMetrics enableMixedMessageType
    enableNetWorkFlowControl enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
    enablePopBufferMerge enablePopLog enablePopMessageThreshold enablePopMetrics enableReconnectForGoAway
    enableRegisterProducer enableRemoteEscape enableRemotingMetrics enableRequestMetrics enableRocksDBLog
    enableRunningFlagsInFlush enableScheduleAsyncDeliver enableScheduleMessageStats enableShutdownGracefully
    enableSingleTopicRegister enableSkipLongAwaitingAck enableSplitMetadata enableSplitRegistration enableStatsMetrics
    enableTransactionMetrics endTransactionPoolQueueCapacity endTransactionThreadPoolNums estimateAccumulation
    expectConsumerNumUseFilter fastFailIfNoBufferInStorePool fetchControllerAddrByDnsLookup filterDataCleanTimeSpan
    filterServerNums filterSupportRetry flushCommitLogTimed flushConsumeQueueLeastPages
    flushConsumeQueueThoroughInterval flushConsumerOffsetHistoryInterval flushDelayOffsetInterval
    flushIntervalConsumeQueue flushLeastPagesWhenWarmMapedFile forceVerifyPropCRC globalColdReadThreshold
    haSlaveFallbehindMax heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity highSpeedMode indexRocksDBEnable
    initPopOffsetByCheckMsgInMem isBrokerContainer isEnableBatchPush isInBrokerContainer isolateLogEnable
    isScanAvailableNameSrv iteratorWhenUseRocksdbConsumeQueue liteEventCapacityCacheTtlMs liteEventCheckInterval
    liteEventFullDispatchDelayTime liteEventFullDispatchDelayTimeForWildcardGroup liteLagCountMetricsEnable
    liteLagLatencyCollectEnable liteLagLatencyMetricsEnable liteLagLatencyTopK litePullMessageEnable
    litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity liteSubscriptionCheckInterval
    liteSubscriptionCheckTimeoutMills liteTtlCheckInterval loadBalancePollNameServerInterval
    loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity lockInStrictMode
    logicalDiskSpaceCleanForciblyThreshold logicQueueForceSwapMapInterval logicQueueSwapMapInterval
    logicQueueSwapMapReserveFileNum mappedFileSizeConsumeQueueExt mappedFileSizeTimerLog mappedFileSwapEnable
    maxAsyncPutMessageRequests maxBatchDeleteFilesNum maxCheckMessageReuseBufferSize maxChecksumRange
    maxClientEventCount maxConsumeQueueScan maxDelayTime maxErrorRateOfBloomFilter maxFilterMessageSize
    maxLiteSubscriptionCount maxMessageFilterNumForNotification maxMsgsNumBatch maxOffsetMapSize
    maxPageSizeInGetMetadata maxReconnectIntervalTimeSeconds maxRecoveryCommitlogFiles maxRocksDBIndexQueryDays
    maxSlaveResendLength maxStatsIdleTimeInMinutes maxTopicLength memTableFlushIntervalMs messageIndexSafe
    messageStorePlugIn metricsExportBatchMaxConcurrent metricsExportBatchMaxDataPoints metricsExportBatchSplitEnabled
    metricsExportOtelMemoryMode metricsOtelCardinalityLimit minLiteTTl objectStoreAccessKey objectStoreBucket
    objectStoreEndpoint objectStoreSecretKey osPageCacheBusyTimeOutMills persistConsumerOffsetIncrementally
    popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
    popConsumerKVServiceEnable popConsumerKVServiceInit popConsumerKVServiceLog popInflightMessageThreshold
    popLongPollingForceNotifyInterval popOrderLockTimerTickMs popOrderLockTimerTicksPerWheel
    popPollingMapExpireTimeSeconds popPollingMapSize popResponseReturnActualRetryTopic popReviveConcurrency
    popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead popReviveSkipIfGroupAbsent popRocksdbBlockCacheSize
    popRocksdbWriteBufferSize printChannelGroups printChannelGroupsMinNum processReplyMessageThreadPoolNums
    pullBatchMaxMessageCount pullMessageThreadPoolNums pullThreadPoolQueueCapacity putConsumeQueueDataByFileChannel
    putMessageFutureThreadPoolNums putMessageTimeout putMsgIndexHightWater putThreadPoolQueueCapacity
    queryMessageThreadPoolNums queryThreadPoolQueueCapacity readAheadCacheAfterReadExpireDuration
    readAheadCacheCreateExpireDuration readAheadCacheEnable readAheadCacheExpireDuration readAheadCacheSizeThresholdRate
    readAheadMessageCountThreshold readAheadMessageSizeThreshold readUnCommitted realTimeNotifyConsumerChange
    realTimePersistRocksDBConfig recheckReputOffsetFromCq recordGetMessageResult recoverConcurrently
    recoverThreadPoolNums rejectPullConsumerEnable replicasPerDiskPartition replyThreadPoolQueueCapacity
    retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime
    rocketmqHome rocksdbCompressionType rocksdbCQDoubleWriteEnable rocksdbCQSelectiveDoubleWriteEnable
    rocksdbFlushWalFrequency rocksdbMaxSizeAmplificationPercent rocksdbWalFileRollingThreshold sampleCountThreshold
    sampleSteps scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked searchBcqByCacheEnable
    sendHeartbeatTimeoutMillis sendMessageThreadPoolNums sendThreadPoolQueueCapacity serverAsyncSemaphoreValue
    serverCallbackExecutorThreads serverLoadBalancerEnable serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize
    serverSocketSndBufSize serverWorkerThreads sharedByteBufferNum shutdownWaitTimeSeconds skipWhenCKRePutReachMaxTimes
    socksProxyConfig spinLockCollisionRetreatOptimalDegree splitMetadataSize splitRegistrationSize
    startAcceptSendRequestTimeStamp statRocksDBCQIntervalSec storeCheckpoint storePathConsumeQueue
    storePathDLedgerCommitLog storePathIndex subscriptionExpiredTimeout syncControllerMetadataPeriod
    syncMasterFlushOffsetWhenStartup tieredBackendServiceProvider tieredMetadataServiceProvider tieredStorageLevel
    tieredStoreCommitLogMaxSize tieredStoreConsumeQueueMaxSize tieredStoreCrcCheckEnable tieredStoreDeleteFileEnable
    tieredStoreDeleteFileInterval tieredStoreDispatchMinFreeMemoryMaxBytes tieredStoreDispatchMinFreeMemoryRatio
    tieredStoreFilePath tieredStoreFileReservedTime tieredStoreGroupCommit tieredStoreGroupCommitCount
    tieredStoreGroupCommitSize tieredStoreGroupCommitTimeout tieredStoreIndexFileMaxHashSlotNum
    tieredStoreIndexFileMaxIndexNum tieredStoreMaxGroupCommitCount tieredStoreMaxPendingLimit timerCheckMetricsWhen
    timerColdDataCheckIntervalMs timerCongestNumEachSlot timerEnableCheckMetrics timerEnableDisruptor
    timerEnableRetryUntilSuccess timerFlushIntervalMs timerGetMessageThreadNum timerInterceptDelayLevel
    timerMetricSmallThreshold timerProgressLogIntervalMs timerPutMessageThreadNum timerRecallToTimelineEnable
    timerRecallToTimeWheelEnable timerReputServiceCorePoolSize timerReputServiceMaxPoolSize
    timerReputServiceQueueCapacity timerRocksDBPrecisionMs timerRocksDBRollIntervalHours timerRocksDBRollMaxTps
    timerRocksDBRollRangeHours timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps timerRollWindowSlot
    timerSkipUnknownError timerStopDequeue timerStopEnqueue timerWarmEnable timerWheelSnapshotFlush
    timerWheelSnapshotIntervalMs topicQueueLockNum transactionCheckRocksdbCoreThreads transactionCheckRocksdbMaxThreads
    transactionCheckRocksdbQueueCapacity transactionMetricFlushInterval transactionOpBatchInterval
    transactionOpMsgMaxSize transferMsgByHeap transientStorePoolEnable transientStorePoolSize
    transWriteOriginTransHalfEnable travelCqFileNumWhenGetMessage updateNameServerAddrPeriod useABSLock
    useEpollNativeSelector useMessageFilterForNotification usePIDColdCtrStrategy useReentrantLockWhenPutMessage
    useSeparateStorePathForRocksdbCQ useSingleRocksDBForAllConfigs useStaticSubscription
    validateSystemTopicWhenUpdateTopic waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue
    waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue
    waitTimeMillsInTransactionQueue wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable webSocketEnable
    writeBufferHighWaterMark writeBufferLowWaterMark writeWithoutMmap
"""
IGNORED_KEYS = frozenset(_KEYS.split())

_NO_ROCKSDB = "this version does not have stores or tables in RocksDB"
_QUEUES = f"{_NO_ROCKSDB}, and the entries of queues would be read from there"
_EXPORT = f"{_NO_ROCKSDB}; export them as files with RocketMQ's tools, and set it to"


def _has_file_queues(kinds: str) -> bool:
    return "default" in [kind.strip() for kind in kinds.split(";")]


LIMITED_KEYS: Mapping[str, LimitedKey] = {
    "combineAssignOffsetCQType": limited("default", f"{_QUEUES}; set it to default in RocketMQ, and restart it first"),
    "combineCQLoadingCQTypes": LimitedKey(
        _has_file_queues,
        "lists with `default`",
        f"{_QUEUES}; add default in RocketMQ, and restart it, which makes the files of queues",
    ),
    "combineCQPreferCQType": limited("default", f"{_QUEUES}; set it to default in RocketMQ, and restart it first"),
    "combineCQUseRocksdbForLmq": limited(
        "false",
        f"{_NO_ROCKSDB}, and light queues would be empty; set it to false in RocketMQ, and let groups read them there",
    ),
    "configManagerVersion": limited("v1", f"{_EXPORT} v1"),
    "indexFileReadEnable": limited(
        "true", f"{_NO_ROCKSDB}: queries by key are answered from index files; set it to true, or leave it out"
    ),
    "indexFileWriteEnable": limited(
        "true",
        f"{_NO_ROCKSDB}: queries by key would not find the messages that RocketMQ has stored without index files; set"
        " it to true in RocketMQ until these messages are deleted, or leave it out and do without such queries",
    ),
    "readOnlyCommitLogStorePaths": LimitedKey(
        lambda text: False,
        "none",
        "the messages in these directories would be missing; move their files to the commit log in storePathRootDir,"
        " and leave it out",
    ),
    "storeType": limited("default", f"{_EXPORT} default"),
    "timerRocksDBEnable": limited(
        "false",
        f"{_NO_ROCKSDB}, and the messages that wait there for their time would be lost; run RocketMQ with false until"
        " they are delivered, or leave it out if none waits",
    ),
    "transRocksDBEnable": limited(
        "false",
        f"{_NO_ROCKSDB}, and open transactions there would be lost; run RocketMQ with false until they have ended, or"
        " leave it out if none is open",
    ),
}
