"""Requests, messages and errors between RocketMQ's protobuf and the domain.

A *request reader* makes a request of bytes within bounds; a *packer* makes of a send the batch that a broker
stores; *client quirks* are what single official clients cannot take.
"""
