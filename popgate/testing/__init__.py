"""Support for tests of popgate and of programs that use it: a manual clock, and a gateway process."""

from popgate.testing.clock import MovableClock
from popgate.testing.gateway import CREATE_ON_USE, GatewayDidNotStart, GatewayProcess, running_gateway

__all__ = ["CREATE_ON_USE", "GatewayDidNotStart", "GatewayProcess", "MovableClock", "running_gateway"]
