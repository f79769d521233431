"""What runs independently of requests: timers, scans in small steps, counters."""
