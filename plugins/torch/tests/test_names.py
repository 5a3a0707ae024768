"""Checks that a script written for horovod.torch finds its names, arguments and defaults, run on every rank."""

import pytest
import torch
from frameworks.horovod_names import differences

import ringtrain.torch as hvd

RUN_IN = {"framework": "ringtrain.torch", "ranks": [1, 3], "each": {"RINGTRAIN_TEST_DEVICE": ["cpu", "cuda"]}}


def test_names_arguments_and_defaults_are_those_of_horovod():
    assert differences("torch", hvd) == []


def test_names_of_mpi_ops_and_util():
    """Scripts can import the names of Horovod's modules from the same paths."""
    from ringtrain.common import util
    from ringtrain.torch import mpi_ops
    from ringtrain_torch.mpi_ops import allreduce_async_, rank, synchronize

    assert hvd.mpi_ops is mpi_ops
    assert (allreduce_async_, synchronize, rank) == (hvd.allreduce_async_, hvd.synchronize, hvd.rank)
    assert mpi_ops.handle_average_backwards_compatibility(None, None) is hvd.Average
    with pytest.warns(DeprecationWarning, match="average is deprecated"):
        assert hvd.handle_average_backwards_compatibility(None, False) is hvd.Sum
    with pytest.raises(ValueError, match="which replaces average"):
        hvd.handle_average_backwards_compatibility(hvd.Sum, True)
    assert hvd.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    assert [n for n in range(9) if util.check_num_rank_power_of_2(n)] == [1, 2, 4, 8]
    assert util.num_rank_is_power_2 is mpi_ops.num_rank_is_power_2
    hvd.check_extension("ringtrain.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match="mxnet is not installed"):
        hvd.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")
    assert hvd.gpu_available("mxnet") is False
    hvd.init()
    if hvd.rank() == 0:
        assert hvd.gpu_available("torch") is torch.cuda.is_available()
