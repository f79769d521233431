"""What consumer groups have taken, hold and finished.

A *ledger* keeps the deliveries of one queue for one group; a *group topic* has the ledgers of one group and
topic. A *pop attempt* takes messages; an *entry* is one message that is held or waits for another attempt.
"""
