"""Ids that gateways and clients must read alike: of messages, deliveries, transactions and queues."""
