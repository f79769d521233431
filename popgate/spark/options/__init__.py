"""What a user gives: options and columns, checked before any request is sent.

The *source* reads a topic and the *sink* writes one. *Gateway options* say how both reach the gateway.
"""
