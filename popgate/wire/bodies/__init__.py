"""JSON bodies of requests and responses, each a type that is decoded and encoded.

*Consumer info* is what a client reports about itself; *offset stats* are offsets of topics and groups;
*broker stats* are what a broker reports about all its topics and groups; *pop info* numbers the messages of a
pop response.
"""
