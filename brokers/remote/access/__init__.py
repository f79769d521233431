"""What every part of the remote broker is built on.

*Cluster access* is given to each part: routes, connections, and requests that look up a route first
and are retried where that is safe. The *broker client* sends a request to a broker by name. The
*refreshing cache* keeps what brokers say of topics or groups. *Long polls* are requests that wait at a
broker.
"""
