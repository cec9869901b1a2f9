"""The settings of the project. With Redis this line was `broker_url = "redis://127.0.0.1:6379/0"`."""

# Without an address the NameServers come from $NAMESRV_ADDR; without that it is 127.0.0.1:9876.
broker_url = "rocketmq://"
result_backend = "rpc://"
task_acks_late = True
task_reject_on_worker_lost = True
