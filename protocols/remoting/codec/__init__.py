"""Conversion of requests, messages and records between RocketMQ's forms and the domain.

A *mark* names a broker in the highest bits of a place in its log; *merged responses* are those of several
brokers as one.
"""
