"""Receives, pulls, and the end of a delivery.

*Settlement* is any end of a delivery: acknowledged, hidden for longer, a dead letter, given back.
"""
