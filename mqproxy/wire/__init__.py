"""The gRPC messages of RocketMQ 5's clients: messaging.proto, and the code that scripts/proto generates from it."""
