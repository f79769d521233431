"""popgate: the vocabulary and the wire of a gateway that speaks Apache RocketMQ 5."""

__version__ = "0.1.0"
