"""The gRPC door: RocketMQ 5 clients, over grpc.aio."""
