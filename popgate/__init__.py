"""The domain model and the wire formats of a gateway that is compatible with Apache RocketMQ 5."""

__version__ = "0.1.0"
