"""The source `rocketmq` of Spark: its options, its offsets, its plan of partitions, reading and decoding.

Nothing is imported here, and Spark, Arrow and numpy only where they are needed: every process that looks a
source up imports this package.
"""
