"""The end of a delivery: acknowledgement, change of the invisible time, dead letter.

A *delivery* is one message as one pop returned it; its receipt handle names broker, queue and pop.
"""
