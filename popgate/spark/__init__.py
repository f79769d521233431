"""The Spark connector: the source and the sink of the format `rocketmq`.

Users import `session`, `listener` and `query_metrics`; Spark imports `source`. `options` checks what a user
gives, `read` is the source, `write` the sink, and `guarantees` makes the sink write each batch once.

This module imports nothing, and the others import Spark, Arrow and numpy only where they need them: every
process that looks up a source imports this package.
"""
