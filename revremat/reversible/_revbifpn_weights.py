"""RevBiFPN's published weights: from the authors' names and layouts to ours.

Theirs are PyTorch's: kernels `[out, in / groups, height, width]`, the classifier
`[classes, features]`, and modules named for the containers they lie in, so that the
names below are all there is to know of that code.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from revremat._errors import UserError
from revremat.reversible._revbifpn import ConvNormAct, MBConv, RevBiFPN
from revremat.reversible.nnx import RevParallel

_SHOWN = 4


def revbifpn_state(arrays: Mapping[str, Any], model: RevBiFPN) -> nnx.State:
    """The state of a model whose weights are those of a PyTorch state dict.

    Running statistics are taken over as they are: PyTorch's variance is the unbiased
    one, which evaluates the same and differs by one example's share in what is averaged
    in from then on. `num_batches_tracked` has no counterpart and is left out.

    Args:
      arrays: The authors' `state_dict()`: from name to array, or to what
        `numpy.asarray` takes, such as a tensor on the CPU.
      model: Of the same variant and with the same parts; it may be abstract, as from
        `nnx.eval_shape`, and is not changed.

    Returns:
      Parameters and running statistics, in the dtype they have in the model, for
      `nnx.update(model, state)`.

    Raises:
      UserError: Names that are missing or not known, arrays of another shape, or what
        is no state dict.

    Source: the names of github.com/CerebrasResearch/RevBiFPN.

    Example:
      >>> from flax import nnx
      >>> from revremat.reversible import REVBIFPN, RevBiFPN, revbifpn_state
      >>> model = RevBiFPN(REVBIFPN["S0"], rngs=nnx.Rngs(0))  # doctest: +SKIP
      >>> arrays = {k: v.numpy() for k, v in torch.load(path).items()}  # doctest: +SKIP
      >>> nnx.update(model, revbifpn_state(arrays, model))  # doctest: +SKIP
    """
    arrays = {
        name: array
        for name, array in _checked(arrays).items()
        if not name.endswith(".num_batches_tracked")
    }
    leaves = {leaf.name: leaf for leaf in _leaves(model)}
    found = {name: np.asarray(arrays[name]) for name in leaves if name in arrays}
    _check_fit(leaves, found, set(arrays) - set(leaves), model)
    paths = {
        id(variable): path
        for path, variable in nnx.iter_graph(model)
        if isinstance(variable, nnx.Variable)
    }
    flat = {}
    for name, leaf in leaves.items():
        value = jnp.asarray(leaf.change(found[name]), leaf.variable.dtype)
        flat[paths[id(leaf.variable)]] = leaf.variable.replace(value)
    return nnx.from_flat_state(flat)


@dataclass(frozen=True)
class _Leaf:
    """A name, the variable it is for, and how the array's layout changes."""

    name: str
    variable: Any
    change: Callable[[np.ndarray], np.ndarray] = lambda array: array
    undo: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda shape: shape

    @property
    def shape(self) -> tuple[int, ...]:
        """In PyTorch's layout."""
        return self.undo(tuple(self.variable.shape))


def _leaves(model: RevBiFPN) -> Iterator[_Leaf]:
    for k, block in enumerate(model.stack.blocks):
        # The authors' stack begins with its stem, which has no weights.
        yield from _block(f"rev_stack.{k + 1}", block)
    if model.neck is not None:
        for k, one in enumerate(model.neck.maps):
            yield from _mbconv(f"rev_stack.recomp_op.recomp_transform_{k}", one)
    if model.head is not None:
        for k, one in enumerate(model.head.down):
            yield from _mbconv(f"head.pyramid_heads.{k}", one)
        yield from _conv_norm("head.final_conv", model.head.conv)
        yield from _linear("head.fc", model.head.linear)


def _block(name: str, block: Any) -> Iterator[_Leaf]:
    if isinstance(block, RevParallel):
        for k, one in enumerate(block.blocks):
            maps: Any = getattr(one, "maps")  # noqa: B009
            for which in "fg":
                inner = f"{name}.rev_transform_{k}.{which}.xform_0_1"
                yield from _mbconv(inner, maps[which])
        return
    maps = block.maps
    for i, j in block.down:
        yield from _mbconv(f"{name}.f.xform_{i}_{j}", maps[f"down_{i}_{j}"])
    # Up-sampling maps are numbered from the coarsest stream, and each is followed by
    # the interpolation.
    last = max(max(pair) for pair in block.up)
    for j, i in block.up:
        inner = f"{name}.g.xform_{last - j}_{last - i}.0"
        yield from _mbconv(inner, maps[f"up_{j}_{i}"].map)


def _mbconv(name: str, module: MBConv) -> Iterator[_Leaf]:
    if module.expand is not None:
        yield from _conv_norm(f"{name}.exp_conv", module.expand)
    yield from _conv_norm(f"{name}.dw_conv", module.depthwise)
    if module.squeeze is not None:
        # In a sequence of pooling, convolution, activation, convolution, activation.
        yield from _conv(f"{name}.se.se.1", module.squeeze.squeeze)
        yield from _conv(f"{name}.se.se.3", module.squeeze.excite)
    yield from _conv_norm(f"{name}.project_conv", module.project)


def _conv_norm(name: str, module: ConvNormAct) -> Iterator[_Leaf]:
    yield from _conv(f"{name}.conv", module.conv)
    norm = module.norm
    yield _Leaf(f"{name}.norm.weight", norm.scale)
    yield _Leaf(f"{name}.norm.bias", norm.bias)
    yield _Leaf(f"{name}.norm.running_mean", norm.mean)
    yield _Leaf(f"{name}.norm.running_var", norm.var)


def _conv(name: str, module: nnx.Conv) -> Iterator[_Leaf]:
    yield _Leaf(
        f"{name}.weight",
        module.kernel,
        lambda array: array.transpose(2, 3, 1, 0),
        lambda shape: (shape[3], shape[2], shape[0], shape[1]),
    )
    if module.bias is not None:
        yield _Leaf(f"{name}.bias", module.bias)


def _linear(name: str, module: nnx.Linear) -> Iterator[_Leaf]:
    yield _Leaf(
        f"{name}.weight",
        module.kernel,
        lambda array: array.T,
        lambda shape: shape[::-1],
    )
    yield _Leaf(f"{name}.bias", module.bias)


def _checked(arrays: Any) -> Mapping[str, Any]:
    """See that it is a state dict, and not what such a one often lies in."""
    if not isinstance(arrays, Mapping) or not arrays:
        raise UserError(
            f"revbifpn_state: {type(arrays).__name__} is no state dict; give a mapping "
            "from name to array, such as torch.load(path, map_location='cpu')."
        )
    inner = [key for key, one in arrays.items() if isinstance(one, Mapping)]
    if inner:
        raise UserError(
            f"revbifpn_state: {inner[0]!r} is itself a mapping, so this is a whole "
            f"checkpoint; give checkpoint[{inner[0]!r}], or whichever holds the model."
        )
    if all(str(name).startswith("module.") for name in arrays):
        raise UserError(
            "revbifpn_state: all names begin with 'module.', as those of a model in "
            "DataParallel do; give {name.removeprefix('module.'): array for name, "
            "array in arrays.items()}."
        )
    return arrays


def _check_fit(
    leaves: Mapping[str, _Leaf],
    found: Mapping[str, np.ndarray],
    unknown: set[str],
    model: RevBiFPN,
) -> None:
    wrong = []
    if missing := [name for name in leaves if name not in found]:
        wrong.append(f"{len(missing)} missing ({_some(missing)})")
    if unknown:
        wrong.append(f"{len(unknown)} unknown ({_some(unknown)})")
    misshaped = [
        f"{name} is {list(array.shape)} and not {list(leaves[name].shape)}"
        for name, array in found.items()
        if array.shape != leaves[name].shape
    ]
    if misshaped:
        wrong.append(f"{len(misshaped)} misshaped ({_some(misshaped)})")
    odd = [
        f"{name} is {array.dtype}"
        for name, array in found.items()
        if not jnp.issubdtype(array.dtype, jnp.floating)
    ]
    if odd:
        wrong.append(f"{len(odd)} without real numbers ({_some(odd)})")
    if not wrong:
        return
    parts = {"head.": model.head, "rev_stack.recomp_op.": model.neck}
    absent = [prefix for prefix, part in parts.items() if part is None]
    advice = "give the state dict of the model's own variant and parts"
    if absent and any(name.startswith(tuple(absent)) for name in unknown):
        advice = f"leave out the names that begin with {' or '.join(map(repr, absent))}"
    raise UserError(
        f"revbifpn_state: the state dict does not fit the model: {', '.join(wrong)}; "
        f"{advice}."
    )


def _some(names: Any) -> str:
    names = sorted(names)
    more = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown
