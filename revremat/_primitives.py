"""What a primitive of JAX is: one table, by name, and the sets that follow from it.

A primitive that is not in the table computes: it has a derivative, is cheap enough to
run again beside what uses it, and rounds.
"""

ATTENTION = "dot_product_attention"
"""With what follows the name, cuDNN's attention: forward and backward."""

_TRAITS = {
    "product": "multiplies matrices, or convolves",
    "matmul": "is such a product by itself, not a kernel of several",
    "collective": "devices exchange data",
    "reduction": "computes its operands on the fly, and writes a small result",
    "opaque": "is a kernel or a call whose work the program does not say",
    "intensive": "to run it again costs more than a pass over memory",
    "move": "computes nothing: gives what it takes another form or place",
    "view": "is a move that takes no time at all",
    "same": "gives what it takes, in another precision or place at most",
    "exact": "gives entries of what it takes, unchanged, or the result of a comparison",
    "discontinuous": "a rounding error may change the result altogether",
    "zero derivative": "its derivative is zero wherever it has one",
    "keeps result": "its derivative is computed from its own result",
    "call": "calls another program",
    "checkpoint": "is a region of `jax.checkpoint`",
    "own derivative": "has a derivative that the user wrote",
}

_FAMILIES = (
    # Traits, and how the names of all such primitives begin.
    ("product, matmul, intensive", "dot_general conv_general ragged_dot"),
    ("product, intensive", ATTENTION),
    ("reduction, intensive", "reduce"),
    ("intensive", "cum scan"),
    ("own derivative", "custom_jvp_call custom_vjp_call"),
)

_PRIMITIVES = (
    # Traits, and the names of all such primitives; each stands here once.
    ("call", "closed_call core_call"),
    ("call, intensive", "jit pjit"),
    ("checkpoint", "remat remat2"),
    ("checkpoint, intensive", "checkpoint"),
    ("intensive", "custom_jvp_call custom_vjp_call custom_vmap_call shard_map"),
    ("opaque, intensive", "pallas_call mpmd_map ffi_call custom_call pure_callback"),
    ("collective, intensive", "psum psum_invariant all_gather all_to_all ppermute"),
    ("collective, intensive", "reduce_scatter"),
    ("collective", "pmax pmin"),
    ("intensive", "cholesky triangular_solve fft eigh qr svd lu"),
    ("intensive", "scatter scatter-add select_and_scatter_add"),
    ("intensive", "random_bits threefry2x32 rng_bit_generator"),
    ("intensive, exact, discontinuous", "sort top_k approx_top_k argmax argmin"),
    ("intensive, exact, discontinuous", "cond while"),
    ("intensive, move, exact", "gather"),
    ("move, view", "bitcast_convert_type copy_p"),
    ("move, view, exact", "reshape squeeze expand_dims"),
    ("move, view, exact, same", "name"),
    ("move, exact", "broadcast_in_dim transpose slice dynamic_slice concatenate pad"),
    ("move, exact", "rev split iota select_n"),
    ("move, exact, zero derivative", "stop_gradient"),
    ("move, exact, same", "copy"),
    ("move, exact, same, discontinuous", "reduce_precision"),
    ("move, same", "convert_element_type optimization_barrier sharding_constraint"),
    ("move", "dynamic_update_slice device_put move_to_memory"),
    ("exact", "max min reduce_max reduce_min cummax cummin neg abs clamp"),
    ("exact, discontinuous", "eq ne lt le gt ge sign"),
    ("exact, discontinuous, zero derivative", "floor ceil round"),
    ("zero derivative", "nextafter"),
    ("keeps result", "tan tanh exp exp2 sqrt rsqrt cbrt logistic erf_inv"),
)


def _having(trait: str, rows: tuple[tuple[str, str], ...] = _PRIMITIVES) -> list[str]:
    assert trait in _TRAITS
    return [
        name
        for traits, names in rows
        if trait in traits.split(", ")
        for name in names.split()
    ]


COLLECTIVES = frozenset(_having("collective"))
OPAQUE = frozenset(_having("opaque"))
MOVES = frozenset(_having("move"))
VIEWS = frozenset(_having("view"))
SAME = frozenset(_having("same"))
EXACT = frozenset(_having("exact"))
DISCONTINUOUS = frozenset(_having("discontinuous"))
ZERO_DERIVATIVE = frozenset(_having("zero derivative"))
KEEPS_RESULT = frozenset(_having("keeps result"))
CALLS = frozenset(_having("call"))
CHECKPOINTS = frozenset(_having("checkpoint"))

ITERATIONS = "iterations_"
"""What the scope of a loop is called that runs as often as a table says, with the mean
of that behind it, in thousandths."""

PRODUCTS = tuple(_having("product", _FAMILIES))
"""How the names of products begin."""
MATMULS = tuple(_having("matmul", _FAMILIES))
REDUCTIONS = tuple(_having("reduction", _FAMILIES))
OWN_DERIVATIVE = tuple(_having("own derivative", _FAMILIES))

_INTENSIVE = frozenset(_having("intensive"))
_INTENSIVE_FAMILIES = tuple(_having("intensive", _FAMILIES))


def is_intensive(kind: str) -> bool:
    """Whether running it again costs more than a pass over memory.

    All else is cheap, and often fused with what uses it.

    >>> is_intensive("dot_general"), is_intensive("reduce_sum"), is_intensive("tanh")
    (True, True, False)
    """
    return kind in _INTENSIVE or kind.startswith(_INTENSIVE_FAMILIES)
