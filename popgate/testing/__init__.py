"""What tests of popgate, and of programs that use it, need: a clock that is moved by hand."""

from popgate.testing.clock import MovableClock

__all__ = ["MovableClock"]
