"""Attention as one operation, cuDNN's: JAX has two for it, forward and backward."""

from typing import Any

import numpy as np


def attention_flops(kind: str, params: Any, shapes: list[tuple[int, ...]]) -> int:
    """FLOPs of its products, a multiply-add as two.

    Forward there are two products, of queries and keys and of that and the values;
    backward there are five: the first is recomputed.

    Args:
      kind: The primitive's name.
      params: Its parameters.
      shapes: Of queries, keys and values, and whatever follows.
    """
    query, key, value = shapes[:3]
    place = 1 if params.get("layout", 0) == 0 else 2  # positions, then heads; or not
    queries, heads, keys = query[place], query[3 - place], key[place]
    pairs = num_pairs(
        queries,
        keys,
        causal="CAUSAL" in str(params.get("mask_type", "")),
        window=params.get("sliding_window_length") or 0,
    )
    products = attention_products("bwd" in kind, key[-1], value[-1])
    return 2 * query[0] * heads * pairs * products


def attention_products(backward: bool, of_key: int, of_value: int) -> int:
    """Multiply-adds for each pair of a query and a key.

    Args:
      backward: Of the backward pass, else of the forward pass.
      of_key: A head's features in keys and queries.
      of_value: A head's features in values.
    """
    return 3 * of_key + 2 * of_value if backward else of_key + of_value


def num_pairs(queries: int, keys: int, *, causal: bool, window: int = 0) -> int:
    """Pairs of a query and a key that attention looks at.

    >>> num_pairs(4, 4, causal=False), num_pairs(4, 4, causal=True)
    (16, 10)
    >>> num_pairs(4, 4, causal=True, window=2)
    7
    """
    if not causal:
        return queries * keys
    last = np.arange(queries)
    first = np.maximum(0, last - window + 1) if window else 0
    return int(np.maximum(0, np.minimum(last, keys - 1) - first + 1).sum())
