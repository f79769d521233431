"""Consumer groups in the domain: delays between deliveries, the status of a group, results of consumption.

A *delay level* is one of RocketMQ's 18; a *retry policy* says after which delay a message is redelivered; a
*verdict* is the result of a message that a client was asked to consume.
"""
