"""What tests of popgate, and of programs that use it, need: a clock moved by hand, a gateway of one's own."""

from popgate.testing.clock import MovableClock
from popgate.testing.gateway import CREATE_ON_USE, GatewayDidNotStart, GatewayProcess, running_gateway

__all__ = ["CREATE_ON_USE", "GatewayDidNotStart", "GatewayProcess", "MovableClock", "running_gateway"]
