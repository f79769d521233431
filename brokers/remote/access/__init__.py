"""What every part above is built on.

*Cluster access* is what each part is given: routes, connections, and requests with a route looked up first
and second tries where those are safe. The *broker client* sends a request to a broker by name. *Unserved*
groups are those that some broker refuses while others serve them.
"""
