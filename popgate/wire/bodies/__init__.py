"""JSON bodies of requests and responses, each a type that is decoded and encoded.

*Consumer info* is what a client reports of itself; *offset stats* are those of topics and groups; *broker
stats* are what a broker reports of all that it has; *pop info* is how a pop response numbers its messages.
"""
