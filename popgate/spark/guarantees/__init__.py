"""What the sink does beyond at-least-once.

The *ledger* is a compacted topic of one queue in which a driver writes that it *opens* a batch and that the
batch is *done*. A *scan* finds what an earlier attempt has sent of a batch; a *replay* sends the rest. *Half*
messages become visible when their batch is committed.
"""
