"""What every part below is built on.

The *broker client* sends a request to a broker by name, retries where that is safe, and turns response
codes into errors. *Queries* are requests of which any broker of the topic may be asked. *Unserved* groups are
those that the cluster refuses for now.
"""
