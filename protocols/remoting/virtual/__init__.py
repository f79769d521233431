"""Clients before 4.9.5 in front of several brokers: one broker for all of them, whose queues have numbers.

They name no broker in their requests (protocol facts 7.7), so what they are told has one name, and queue
ids that are numbers of queues (`popgate.ids.queue_numbers`). Whose log a place is in, all clients are told in
the same way (`protocols.remoting.codec.marks`).
"""
