"""Worlds of ranks with JAX, and assertions about results of each rank."""

import contextlib

import jax
import pytest

import ringtrain.jax as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
RANKS = range(SIZE)


@contextlib.contextmanager
def x64():
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)


def error_of(call):
    with pytest.raises(RuntimeError) as caught:
        jax.block_until_ready(call())
    jax.effects_barrier()
    return str(caught.value)
