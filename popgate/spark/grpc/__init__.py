"""The gateway over gRPC, for `transport=grpc`.

The *connection* carries calls, and the *client* has the methods of `popgate.queue_client.QueueClient`, so
that reader, planner and sender are the same over both transports. A pulled *message* becomes a record as
brokers store it, and a row that was encoded for remoting becomes a message. Only here does the connector need
grpcio and protobuf.
"""
