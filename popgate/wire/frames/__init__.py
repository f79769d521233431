"""Frames of remoting: their codes, headers, signatures, and the machine that reads and writes them."""
