"""Reads that take nothing: pulls, offsets, messages by id, key and time, and the locks of queues."""
