"""The end of a process: signals, the deadline of a drain, and the watchdog that keeps it."""
