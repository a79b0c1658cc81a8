"""Programs no two of whose layers are equal."""

import jax
import jax.numpy as jnp


def chain(ws, x):
    """Products of different widths, each an elementwise function after it."""
    functions = (jnp.tanh, jnp.sin, jax.nn.silu)
    for k, w in enumerate(ws):
        x = functions[k % 3](x @ w)
    return (x**2).mean()


def with_skips(ws, x):
    """Down and up again, with what is on the way down joined on the way up."""
    n, seen = len(ws) // 2, []
    for w in ws[:n]:
        seen.append(x)
        x = jnp.tanh(x @ w)
    for w in ws[n:]:
        x = jnp.sin(x @ w) + seen.pop()
    return (x**2).mean()
