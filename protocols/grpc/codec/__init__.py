"""Conversion of requests, messages and errors between RocketMQ's protobuf and the domain.

A *request reader* decodes a request within limits; a *packer* turns a send into the batch that a broker
stores; *client quirks* are limitations of single official clients.
"""
