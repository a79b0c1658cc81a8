"""A residual network in Flax NNX, and the step that trains it with optax."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import revremat as rr


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(x)))


def make_model(width, num_layers):
    return nnx.Sequential(*[Block(width, nnx.Rngs(k)) for k in range(num_layers)])


def loss(model, batch):
    return jnp.mean((model(batch) - batch) ** 2)


def problem(target, batch_size=786_432, width=1024, num_layers=4):
    """What revremat asks for: the loss, its arguments, and the whole step."""

    def make_state():
        model = make_model(width, num_layers)
        return model, nnx.Optimizer(model, optax.adamw(1e-4), wrt=nnx.Param)

    model, optimizer = nnx.eval_shape(make_state)  # shapes alone; nothing is allocated
    batch = jax.ShapeDtypeStruct((batch_size, width), jnp.float32)

    def make_step(loss):
        def step(model, optimizer, batch):
            value, gradients = nnx.value_and_grad(loss)(model, batch)
            optimizer.update(model, gradients)
            return value

        return step, (model, optimizer, batch)

    return rr.Problem(loss, (model, batch), make_step, donate=(0, 1), name="mlp")
