"""Data-parallel training: ring allreduce over gRPC and an optimizer that lives in host memory."""
