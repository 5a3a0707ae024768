"""Data-parallel training: ring allreduce over gRPC and an optimizer that lives in host memory."""

from ringtrain.report import report

__all__ = ["report"]
