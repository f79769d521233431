"""The source: the driver plans a batch, and tasks pull its messages.

A *position* is where a query starts or ends as its user wrote it; an *offset* is the number that it resolves
to. A *range* is a queue from one offset to another, and a *plan* is the ranges of each task.
"""
