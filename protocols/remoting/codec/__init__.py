"""Requests, messages and records between RocketMQ's forms and ours.

A *mark* names a broker in the highest bits of a place in its log; *merged responses* are those of several
brokers as one.
"""
