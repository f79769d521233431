"""Pops and long polls.

A receive that finds nothing waits in the *wait queue*; the *arrival watch* asks the brokers for news and
wakes it, and only then a *pop* takes messages, which the *pop filter* sorts into those to deliver and those
to return.
"""
