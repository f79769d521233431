"""What runs beside requests: alarms by the clock, scans in small steps, counters."""
