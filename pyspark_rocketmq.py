"""Found by Spark, which looks into modules named so: `spark.read.format("rocketmq")` needs no register()."""

from popgate.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
