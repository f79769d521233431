"""The sink: a task encodes rows as messages and sends them until every one is acknowledged.

An *outgoing row* is a row encoded as one message; *packed rows* are many, encoded column by column. A *lot*
is the messages of one send request.
"""
