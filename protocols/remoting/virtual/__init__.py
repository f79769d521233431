"""Clients before 4.9.5 in front of several brokers: they see one broker, whose queues have numbers.

They name no broker in their requests (protocol facts 7.7), so their answers contain one broker name, and
queue ids that are numbers of queues (`popgate.ids.queue_numbers`). Places in logs are marked with their
broker as for all clients (`protocols.remoting.codec.marks`).
"""
