"""How calls of the port travel between a guest and its host: values, layouts, contexts, errors.

A *kind* says how one type of value is written and read; *type hints* are what most kinds are derived from.
"""
