"""Lite topics: many light queues within one topic.

A *cursor* is how far a group has come in a lite topic; the *catalog* has the lite topics of a topic.
"""
