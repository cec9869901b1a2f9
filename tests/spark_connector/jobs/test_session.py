from spark_connector.jobs.session import task_error

FAILED = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0
Traceback (most recent call last):
  File "copy_topic.py", line 60, in run
sdk.SendFailed: no broker stored the message

\tat org.apache.spark.api.python.BasePythonRunner
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:"""


def test_what_a_task_raised_is_one_line() -> None:
    assert task_error(FAILED) == "sdk.SendFailed: no broker stored the message"
    assert task_error("lost") == "lost"
