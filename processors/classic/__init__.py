"""What only classic clients and RocketMQ's tools ask for: queue locks, retries sent back, replies."""
