"""What the cluster consists of, and where its topics live.

*Name servers* return *routes*: the *brokers* of a topic, and how many queues each of them has.
"""
