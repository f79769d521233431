"""What only classic clients and RocketMQ's tools request: locks of queues, messages sent back, replies, commands."""
