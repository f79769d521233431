"""Several processes of one gateway: the supervisor that accepts, starts and renews them, and their work.

A *trial* is a test start of the current program beside the running one; *replacement* is the supervisor that
re-executes itself as that program, and keeps its process id, ports and workers.
"""
