# %% [markdown]
# # Orders in a topic: look at them, count them, write the counts back
#
# Cells as VS Code, PyCharm and Spyder run them one by one, and Jupyter by Jupytext (open this file as a
# notebook); `python docs/examples/spark_orders.py` runs them all. It needs `pip install -e '.[spark]'`,
# Java 17 or newer, and a gateway that makes topics on first use.

# %%
from pathlib import Path

from pyspark.sql import functions as f

from popgate.spark.listener import RocketMQListener
from popgate.spark.session import rocketmq_session

GATEWAY = {"endpoints": "127.0.0.1:8080"}
CHECKPOINT = Path("example-checkpoint").resolve()

spark = rocketmq_session("orders")

# %% [markdown]
# ## Some orders
#
# One each second from midnight on, of four cities: JSON as the body, the city as the tag, and a key to find
# one by. Usually somebody else sends them. One task does it here: several would send early and late orders at
# the same time, and what is more than a minute late is not counted below.

# %%
order = f.struct(
    f.concat(f.lit("order-"), f.col("id")).alias("id"),
    f.element_at(
        f.array(*map(f.lit, ["Oslo", "Lima", "Pune", "Graz"])), (f.col("id") % 4 + 1).cast("int")
    ).alias("city"),
    (f.col("id") % 50).cast("double").alias("amount"),
    f.timestamp_seconds(f.lit(1767225600) + f.col("id")).alias("at"),
)
orders = spark.range(0, 1000, 1, 1).select(order.alias("order"))
messages = orders.select(
    f.to_json("order").alias("body"), f.col("order.city").alias("tag"), f.col("order.id").alias("keys")
)
messages.write.format("rocketmq").options(**GATEWAY, topic="example-orders").mode("append").save()

# %% [markdown]
# ## A look at them
#
# A batch reads what is there. The schema says which columns are wanted; the others are not decoded. The
# gateway leaves out what has another tag.

# %%
there = spark.read.schema("queue_id int, queue_offset bigint, tag string, body binary")
there = there.format("rocketmq").options(**GATEWAY, topic="example-orders", tag="Oslo").load()
there.withColumn("body", f.col("body").cast("string")).show(5, truncate=False)
print(there.count(), "orders of Oslo")

# %% [markdown]
# ## Counts of five minutes, by city
#
# A stream goes on where it was when it is started again from its checkpoint; `availableNow` ends it when it
# has all that is there. A window is told when an order has come that is a minute behind its end: the last one
# stays open. The listener writes to the log how far the query is behind, and reports it to the gateway for
# its `/metrics`.

# %%
listener = RocketMQListener(GATEWAY)
spark.streams.addListener(listener)

stream = spark.readStream.schema("body binary").format("rocketmq")
stream = stream.options(
    **GATEWAY, topic="example-orders", startingOffsets="earliest", maxOffsetsPerTrigger=400
).load()
parsed = stream.select(
    f.from_json(f.col("body").cast("string"), "id string, city string, amount double, at timestamp").alias(
        "order"
    )
).select("order.*")
counts = (
    parsed.withWatermark("at", "1 minute")
    .groupBy(f.window("at", "5 minutes"), "city")
    .agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))
    .select(f.col("window.start").alias("begin"), "city", "orders", "amount")
)
writer = (
    counts.select(f.to_json(f.struct("*")).alias("body"), f.col("city").alias("tag"))
    .writeStream.format("rocketmq")
    .queryName("orders-by-city")
    .options(**GATEWAY, topic="example-counts", checkpointLocation=str(CHECKPOINT))
)
query = writer.trigger(availableNow=True).start()
query.awaitTermination()
for progress in query.recentProgress:
    print(f"batch {progress.batchId}: {progress.numInputRows} orders in {progress.batchDuration} ms")

# %% [markdown]
# ## What came of it
#
# Counts are messages like any others: read them as a batch, or receive them with any client of RocketMQ.

# %%
result = spark.read.schema("body binary").format("rocketmq").options(**GATEWAY, topic="example-counts").load()
result = result.select(
    f.from_json(
        f.col("body").cast("string"), "begin timestamp, city string, orders bigint, amount double"
    ).alias("count")
).select("count.*")
table = result.groupBy("begin").pivot("city").sum("orders").orderBy("begin")
table.show(truncate=False)

# %% [markdown]
# Started again, the query counts what came since, and tells no window twice. Try it: send more orders, of
# later times, and run the cell of the stream once more.

# %%
spark.streams.removeListener(listener)
listener.close()
