"""The store on disk: RocksDB column families, keys, commits, repair, and copies.

A *commit group* is one atomic write; a *due queue* holds what must be done at a time. The *disk guard*
refuses writes before the disk is full.
"""
