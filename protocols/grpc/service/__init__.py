"""The service of RocketMQ 5, knowing no transport: one method per RPC."""
