"""Units to decide about: drawn at random, and of networks people train."""

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

import revremat as rr
from revremat._graph import Operation, Unit, Value

KINDS = ("dot_general", "add", "exp", "reduce_sum", "reshape")


@st.composite
def drawn_units(draw, most_values=12):
    """Units of a few values: one or two inputs, a weight, operations in any shape."""
    num_inputs = draw(st.integers(1, 2))
    roles = ["input"] * num_inputs + ["held"]
    operations, num_values = [], len(roles)
    for _ in range(draw(st.integers(1, most_values - num_values))):
        kind = draw(st.sampled_from(KINDS))
        position = st.integers(0, num_values - 1)
        inputs = draw(st.lists(position, min_size=1, max_size=2, unique=True))
        outputs = [num_values]
        if draw(st.integers(0, 5)) == 0 and num_values + 1 < most_values:
            outputs.append(num_values + 1)
        num_values += len(outputs)
        roles += ["made"] * len(outputs)
        operations.append(
            Operation(
                kind=kind,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                num_flops=draw(st.integers(0, 5000)),
                compute_intensive=kind in ("dot_general", "reduce_sum"),
                effectful="draws" if draw(st.integers(0, 9)) == 0 else "",
                source="",
            )
        )
        if num_values >= most_values:
            break
    values = tuple(
        Value(
            name="" if role == "held" else f"v{k}",
            given=False,
            shape=(),
            dtype="float32",
            num_bytes=draw(st.integers(1, 40)),
            role=role,
        )
        for k, role in enumerate(roles)
    )
    position = st.integers(0, num_values - 1)
    residuals = draw(st.lists(position, min_size=1, max_size=5, unique=True))
    return Unit(
        name="u",
        kind="scan",
        fingerprint="",
        num_layers=4,
        values=values,
        operations=tuple(operations),
        residuals_of=tuple(residuals),
        weight_bytes=0,
        forward_flops=0,
        backward_flops=0,
        outputs=(num_values - 1,),
        read_whole=tuple(draw(st.lists(st.sampled_from(residuals), unique=True))),
    )


def transformer(*, tags=(), flash=False, num_layers=4):
    """A layer of norm, softmax attention and a gated MLP; `tags` name its products."""
    width, hidden, heads, length, batch = 4096, 16384, 32, 1024, 4
    tag = lambda x, name: rr.name(x, name) if name in tags else x

    def norm(x):
        return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)

    def attend(q, k, v):
        scores = jnp.einsum("bthd,bshd->bhts", q, k) * 0.25
        return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)

    if flash:
        attend = _flash

    def layer(w, x):
        n = norm(x)
        split = lambda a: a.reshape(batch, length, heads, -1)
        q, k, v = (
            split(tag(n @ w[f"{name}_proj"], f"{name}_proj"))
            for name in ("query", "key", "value")
        )
        context = tag(attend(q, k, v).reshape(x.shape), "context")
        x = x + tag(context @ w["out_proj"], "out_proj")
        n = norm(x)
        gate, up = (tag(n @ w[name], name) for name in ("mlpwi_0", "mlpwi_1"))
        return x + tag((jax.nn.silu(gate) * up) @ w["mlpwo"], "mlpwo")

    array = lambda *shape: jax.ShapeDtypeStruct((num_layers, *shape), jnp.float32)
    attention = ("query_proj", "key_proj", "value_proj", "out_proj")
    ws = {
        **{name: array(width, width) for name in attention},
        "mlpwi_0": array(width, hidden),
        "mlpwi_1": array(width, hidden),
        "mlpwo": array(hidden, width),
    }
    x = jax.ShapeDtypeStruct((batch, length, width), jnp.float32)
    graph = rr.trace(lambda ws, x: rr.stack(layer, ws, x).sum(), ws, x)
    return graph["stack"]


@jax.custom_vjp
def _flash(q, k, v):
    """Stands for a kernel: nobody sees inside."""
    return _kernel(q, k, v)


def _kernel(q, k, v):
    shape = jax.ShapeDtypeStruct(q.shape, q.dtype)
    return jax.pure_callback(lambda q, k, v: q, shape, q, k, v)


_flash.defvjp(
    lambda q, k, v: (y := _kernel(q, k, v), (q, k, v, y)),
    lambda kept, ct: tuple(ct * one for one in kept[:3]),
)


def made_by(unit, kind):
    """Names of what operations of a kind make."""
    return {
        unit.values[k].name
        for op in unit.operations
        if op.kind == kind
        for k in op.outputs
    }
