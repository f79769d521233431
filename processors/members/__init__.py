"""The members of consumer groups, at all gateways, and how they read.

A group is *mapped* while all of its members may be popped for; else they pull. Each member of a *broadcast*
group has a group of its own.
"""
