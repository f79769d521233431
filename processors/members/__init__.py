"""Who is in a consumer group, at any gateway, and how its members read.

A group is *mapped* while all of its members may be popped for; else they pull. Each member of a *broadcast*
group has a group of its own.
"""
