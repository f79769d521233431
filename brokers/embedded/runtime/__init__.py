"""What runs independently of requests: timers, scans in small steps, counters.

The *disk guard* refuses writes before the disk is full.
"""
