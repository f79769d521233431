"""Sockets of asyncio: machines driven on them, servers closed, sockets in the file system."""
