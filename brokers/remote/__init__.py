"""A RocketMQ cluster behind the port, reached over the remoting protocol."""
