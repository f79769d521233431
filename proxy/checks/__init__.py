"""Checks a configuration before it is used: `popgate config check`.

A *finding* is a fault, which keeps `serve` from starting, or a warning: something that is accepted and
probably a mistake. Its *place* is the line of the file, the variable or the flag that it comes from.
"""
