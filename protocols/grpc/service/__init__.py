"""The service of RocketMQ 5, independent of the transport: one method per RPC."""
