"""In the shape of Horovod's elastic example for Keras: a step to make all variables, then `fit` with callbacks.

It trains until the file in its argument exists. Each batch takes 1 from the weight.
"""

import os
import sys
import time

import tensorflow as tf

import ringtrain.tensorflow.keras as hvd

hvd.init()
keras = tf.keras
model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
model.set_weights([tf.zeros((1, 1)).numpy()])
model.compile(
    loss=lambda _, predicted: tf.reduce_mean(predicted),
    optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)),
)
ones, zeros = (tf.data.Dataset.from_tensors((tf.fill((4, 1), v), tf.ones((4, 1)))).repeat() for v in (1.0, 0.0))
model.fit(zeros, steps_per_epoch=1, epochs=1, verbose=0)
state = hvd.elastic.KerasState(model, batch=0, epoch=0)
STEPS = 5


def on_state_reset():
    state.model.fit(zeros, steps_per_epoch=1, epochs=1, verbose=0)  # meets the newcomers' first step


state.register_reset_callbacks([on_state_reset])


class Watch(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.05)  # newcomers take seconds to import TensorFlow, and need the processors meanwhile
        if hvd.rank() == 0:
            print(f"epoch {state.epoch} batch {state.batch} of {hvd.size()} ranks", flush=True)

    def on_epoch_end(self, epoch, logs=None):
        if float(hvd.allreduce(float(os.path.exists(sys.argv[1])), name="end")) > 0:
            self.model.stop_training = True


callbacks = [
    hvd.elastic.UpdateEpochStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
    Watch(),
    hvd.elastic.CommitStateCallback(state),
]


@hvd.elastic.run
def train(state):
    state.model.fit(ones, steps_per_epoch=STEPS, epochs=100_000 - state.epoch, callbacks=callbacks, verbose=0)


train(state)
print(f"{state.epoch * STEPS} batches, weight {float(model.get_weights()[0][0, 0]):g}", flush=True)
