"""Checks that scripts for horovod.tensorflow and horovod.keras find their names, arguments and defaults."""

import numpy as np
import tensorflow as tf
from frameworks.horovod_names import differences

import ringtrain.keras
import ringtrain.keras.callbacks
import ringtrain.tensorflow
import ringtrain.tensorflow as hvd
import ringtrain.tensorflow.keras
import ringtrain.tensorflow.keras.callbacks

RUN_IN = [
    {"framework": "keras", "ranks": [1, 3]},
    {"name": "keras-2", "framework": "tf_keras", "env": {"TF_USE_LEGACY_KERAS": "1"}, "ranks": [2]},
]


def test_helpers_of_horovod():
    assert hvd.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    assert [hvd.check_num_rank_power_of_2(n) for n in (0, 1, 3, 4)] == [False, True, False, True]
    assert hvd.handle_average_backwards_compatibility(None, False) is hvd.Sum
    hvd.check_extension("ringtrain.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__, "mpi_lib")
    variables = [tf.Variable(1.0), [tf.Variable(2.0)]]
    back = hvd.refs_to_vars(hvd.vars_to_refs(variables))
    assert (back[0] is variables[0], back[1][0] is variables[1][0]) == (True, True)
    assert hvd.mpi_ops.allgather is hvd.allgather


def test_aggregation_helper_of_horovod():
    """Two runs of a graph: the first only counts, the second reduces the sum of both and applies it."""
    hvd.init()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        shared, local = (tf.compat.v1.get_variable(name, initializer=0.0) for name in ("shared", "local"))
        steps = tf.compat.v1.train.get_or_create_global_step()
        helper = hvd.LocalGradientAggregationHelper(
            2, lambda grads, _: [hvd.allreduce(g, op=hvd.Sum) for g in grads], False, True, hvd.rank(), "any"
        )
        helper.register_local_var(local)
        grads = helper.compute_gradients([tf.constant(3.0), tf.constant(1.0)], [shared, local])
        plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        pairs = list(zip(grads, [shared, local], strict=True))
        update = helper.apply_gradients(
            lambda: plain.apply_gradients(pairs, global_step=steps), plain, pairs, global_step=steps
        )
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(update)
        assert session.run([shared, local, steps]) == [0.0, 0.0, 1]
        session.run(update)
        np.testing.assert_allclose(session.run([shared, local]), [-3.0 * hvd.size(), -1.0 / hvd.size()])
        assert session.run(steps) == 2


def test_names_arguments_and_defaults_are_those_of_horovod():
    assert differences("tensorflow", ringtrain.tensorflow) == []
    assert differences("keras", ringtrain.keras) == []
    assert differences("keras.callbacks", ringtrain.keras.callbacks) == []
    assert differences("keras.elastic", ringtrain.keras.elastic) == []
    assert differences("tensorflow.elastic", ringtrain.tensorflow.elastic) == []
    assert differences("tensorflow.keras.elastic", ringtrain.tensorflow.keras.elastic) == []
    assert differences("tensorflow.keras", ringtrain.tensorflow.keras) == []
    assert differences("tensorflow.keras.callbacks", ringtrain.tensorflow.keras.callbacks) == []
