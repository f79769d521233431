"""The Telemetry stream of one client: its settings, and the commands that it is sent.

A *pending query* is a command whose response has not come; the *outbox* holds what is to be written; a
*departure* is a client that announced its end.
"""
