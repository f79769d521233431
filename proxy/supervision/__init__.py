"""Several processes of one gateway: the supervisor that accepts, starts and renews them, and their work.

A *trial* is the program started anew beside the one that runs; *replacement* is the supervisor that becomes
it, and keeps its process id, ports and workers.
"""
