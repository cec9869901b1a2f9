"""Orders and payments from two topics into Parquet, PostgreSQL and another topic: each row once, whatever is killed.

    python pipeline.py NAMESERVER FOLDER DATABASE

Three queries run until Ctrl-C. `archive` writes each order to Parquet files, `paid` writes orders with their payments
to a table of PostgreSQL, and `revenue` sends what each shop has sold in each minute to a topic. When a query fails, the
exit code is 1. Started again with the same FOLDER, which holds their checkpoints, all three go on where they were.
"""

import argparse
import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # before the session starts

import psycopg
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import DataStreamWriter

from skylark.spark import register

ORDER = "order_id string, shop string, amount bigint, at timestamp"
PAYMENT = "order_id string, paid_at timestamp"
TABLES = """
CREATE TABLE IF NOT EXISTS paid (order_id text, shop text, amount bigint, at timestamptz, paid_at timestamptz);
CREATE TABLE IF NOT EXISTS saved_batches (query_id text, batch_id bigint, PRIMARY KEY (query_id, batch_id));
"""


class Pipeline:
    """The session, and what the queries have in common."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.spark: SparkSession = (
            SparkSession.builder.appName("orders")
            .config("spark.sql.shuffle.partitions", options.partitions)
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        register(self.spark)

    def events(self, topic: str, schema: str, time: str) -> DataFrame:
        """The JSON events of a topic. A sender that does not know whether its send succeeded sends an event twice."""
        messages = (
            self.spark.readStream.format("rocketmq")
            .schema("body binary")
            .option("nameserver", self._options.nameserver)
            .option("topic", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self._options.batch)
            .load()
        )
        event = f.from_json(f.col("body").cast("string"), schema).alias("event")
        parsed = messages.select(event).select("event.*").where("order_id IS NOT NULL")
        return parsed.withWatermark(time, self._options.late).dropDuplicatesWithinWatermark(["order_id"])

    def start(self, name: str, writer: DataStreamWriter) -> None:
        checkpoint = f"{self._options.folder}/checkpoints/{name}"
        writer.queryName(name).option("checkpointLocation", checkpoint).trigger(
            processingTime=self._options.trigger
        ).start()

    def archive(self) -> DataStreamWriter:
        orders = self.events("orders", ORDER, "at")
        return orders.writeStream.format("parquet").option("path", f"{self._options.folder}/orders")

    def paid(self) -> DataStreamWriter:
        orders = self.events("orders", ORDER, "at")
        payments = self.events("payments", PAYMENT, "paid_at").withColumnRenamed("order_id", "of_order")
        in_time = "order_id = of_order AND paid_at BETWEEN at AND at + INTERVAL 1 HOUR"
        return orders.join(payments, f.expr(in_time)).drop("of_order").writeStream.foreachBatch(self._save)

    def revenue(self) -> DataStreamWriter:
        sums = self.events("orders", ORDER, "at").groupBy(f.window("at", "1 minute"), "shop").agg(f.sum("amount"))
        row = sums.toDF("span", "shop", "revenue").select(f.col("span.start").alias("minute"), "shop", "revenue")
        messages = row.select(f.to_json(f.struct("*")).alias("body"))
        return (
            messages.writeStream.format("rocketmq")
            .option("nameserver", self._options.nameserver)
            .option("topic", "revenue")
        )

    def _save(self, rows: DataFrame, batch_id: int) -> None:
        """Store a micro-batch and its number in one transaction.

        Spark runs a micro-batch again when the job was killed before the checkpoint had its end. If the transaction
        was committed, the number is there, and nothing is stored. The rows pass through the driver; --batch is
        their bound.
        """
        query_id = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        with psycopg.connect(self._options.database) as connection:  # commits at the end of the block
            number = "INSERT INTO saved_batches VALUES (%s, %s) ON CONFLICT DO NOTHING"
            if connection.execute(number, (query_id, batch_id)).rowcount == 0:
                return
            with connection.cursor().copy("COPY paid (order_id, shop, amount, at, paid_at) FROM STDIN") as copy:
                for row in rows.select("order_id", "shop", "amount", "at", "paid_at").collect():
                    copy.write_row(row)


def main(options: argparse.Namespace) -> None:
    with psycopg.connect(options.database) as connection:
        connection.execute(TABLES)
    pipeline = Pipeline(options)
    for name, writer in (
        ("archive", pipeline.archive()),
        ("paid", pipeline.paid()),
        ("revenue", pipeline.revenue()),
    ):
        pipeline.start(name, writer)
    try:
        pipeline.spark.streams.awaitAnyTermination()
    except StreamingQueryException as error:
        sys.exit(f"a query has failed, start the pipeline again: {error}")
    except KeyboardInterrupt:
        for query in pipeline.spark.streams.active:
            query.stop()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("nameserver", help="HOST:PORT")
    arguments.add_argument("folder", help="for Parquet files and checkpoints")
    arguments.add_argument("database", help="of PostgreSQL, as in postgresql://user:password@host/shop")
    arguments.add_argument("--trigger", default="1 second", help="a micro-batch begins this often (default: 1 second)")
    arguments.add_argument("--late", default="10 minutes", help="how late events may come (default: 10 minutes)")
    arguments.add_argument("--batch", default=10_000, type=int, help="most messages of a micro-batch (default: 10000)")
    arguments.add_argument(
        "--partitions", default=2, type=int, help="of the state; the first start decides for good (default: 2)"
    )
    main(arguments.parse_args())
