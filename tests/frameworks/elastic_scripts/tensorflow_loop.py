"""In the shape of Horovod's elastic example for TensorFlow 2: a tape in a function, a commit after each batch.

It trains until the file in its argument exists. Each batch takes 1 from the weight.
"""

import os
import sys
import time

import tensorflow as tf

import ringtrain.tensorflow as hvd

hvd.init()
model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1, use_bias=False)])
model.set_weights([tf.zeros((1, 1)).numpy()])
rate = 0.5
optimizer = tf.keras.optimizers.SGD(rate * hvd.size())


@tf.function
def training_step(batch, reduce=True):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(batch))
    if reduce:
        tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))


training_step(tf.zeros((4, 1)), reduce=False)  # makes the variables
training_step(tf.zeros((4, 1)))  # a newcomer is alone with it: the others are on their way to `train`


@hvd.elastic.run
def train(state):
    while not hvd.broadcast_object(os.path.exists(sys.argv[1]), 0):
        time.sleep(0.05)  # newcomers take seconds to import TensorFlow, and need the processors meanwhile
        training_step(tf.ones((4, 1)) / (rate * hvd.size()))
        state.batch += 1
        state.commit()
        if hvd.rank() == 0:
            print(f"batch {state.batch} of {hvd.size()} ranks", flush=True)


def on_state_reset():
    optimizer.learning_rate.assign(rate * hvd.size())


state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)
state.register_reset_callbacks([on_state_reset])
train(state)
print(f"{state.batch} batches, weight {float(model.get_weights()[0][0, 0]):g}", flush=True)
