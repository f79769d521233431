"""Lite topics: light queues within a topic. A million idle ones cost disk, and nothing else."""
