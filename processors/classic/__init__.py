"""What only classic clients and RocketMQ's tools request: locks, messages sent back, replies, commands."""
