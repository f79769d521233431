"""The way of every RPC: open the request, call the service, report errors.

The *dispatcher* does so for all RPCs; *namespaces* and *faults* are dispatchers around it.
"""
