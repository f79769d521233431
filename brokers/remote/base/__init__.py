"""What every part below is built on.

The *broker client* sends a request to a broker by name, retries where that is safe, and turns response codes into
errors. A *component* is a part of the remote broker. *Unserved* groups are those that the cluster refuses for now.
"""
