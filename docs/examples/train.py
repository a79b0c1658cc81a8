"""Trains the network of mlp.py for one step, to be run with XLA's dump on."""

import jax.numpy as jnp
import optax
from flax import nnx
from mlp import loss, make_model

model = make_model(width=128, num_layers=2)
optimizer = nnx.Optimizer(model, optax.adamw(1e-4), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, batch):
    value, gradients = nnx.value_and_grad(loss)(model, batch)
    optimizer.update(model, gradients)
    return value


train_step(model, optimizer, jnp.ones((1024, 128)))
