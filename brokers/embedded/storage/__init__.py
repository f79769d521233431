"""The store on disk: RocksDB column families, keys, commits, repair, and copies.

A *commit group* is what is called, and who is answered, after one atomic write; a *due queue* holds what must
be done at a time. A *record block* is several messages in one value.
"""
