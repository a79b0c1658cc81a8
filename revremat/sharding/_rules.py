"""Rules that say where each array of a tree lives.

A rule looks at one leaf (its path, its shape) and gives mesh axes to dimensions that
are still free. Rules compose from left to right: tensor parallelism by path first, then
FSDP over what is left. Paths look like `params/blocks/attn/qkv/kernel`; a pattern may
match anywhere in one, so the same rule places a parameter and its optimizer moments.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from revremat._errors import UserError
from revremat.sharding._axes import Axes, AxisRules
from revremat.sharding._logical import Logical

Placement = tuple[Axes, ...]
"""One entry for each dimension of an array."""


class Rule(Protocol):
    """Gives mesh axes to dimensions of an array.

    A rule keeps what earlier rules placed: wherever `placed` holds axes, the result
    holds the same.

    Example:
      >>> from revremat.sharding import Replicate
      >>> Replicate().pattern
      ''
    """

    def place(
        self,
        path: str,
        shape: tuple[int, ...],
        placed: Placement,
        axis_sizes: Mapping[str, int],
    ) -> Placement | None:
        """The placement after this rule, or None where it has nothing to say."""
        ...


@dataclass(frozen=True)
class Replicate:
    """Every device holds the whole array; no later rule touches it.

    Attributes:
      pattern: A regular expression for the paths it closes.

    Example:
      >>> from revremat.sharding import FSDP, Replicate, place
      >>> rules = [Replicate("embed"), FSDP(axis="data")]
      >>> place(rules, "embed/table", (1024, 4096), {"data": 8})
      P()
    """

    pattern: str = ""

    def place(self, path, shape, placed, axis_sizes):
        """Nothing is placed; `resolve` stops at this rule."""
        del shape, axis_sizes
        return placed if re.search(self.pattern, path) else None


@dataclass(frozen=True)
class ByPath:
    """Axes by the name of the array: tensor parallelism.

    Attributes:
      table: `(pattern, spec)` pairs. Patterns with different specs that match one path
        are an error. A spec is aligned with the *last* dimensions, so that one entry
        serves a layer's array and the same array stacked over layers.

    Example:
      >>> ByPath(((r"up/kernel$", PartitionSpec(None, "model")),)).place(
      ...     "blocks/up/kernel", (12, 64, 256), ((), (), ()), {"model": 4})
      ((), (), ('model',))
    """

    table: tuple[tuple[str, PartitionSpec], ...]

    def place(self, path, shape, placed, axis_sizes):
        """Put the spec of the matching pattern on the last dimensions."""
        found = [entry for entry in self.table if re.search(entry[0], path)]
        if not found:
            return None
        pattern, spec = found[0]
        for other, another in found[1:]:
            if another != spec:
                raise UserError(
                    f"the patterns {pattern!r} and {other!r} both match {path!r} "
                    f"{shape}, and say {spec} and {another}; make one of them narrower"
                )
        if len(spec) > len(shape):
            raise UserError(
                f"rule {pattern!r} has {len(spec)} entries ({spec}) and {path!r} has "
                f"{len(shape)} dimensions {shape}; shorten the rule or its pattern"
            )
        offset = len(shape) - len(spec)
        result = list(placed)
        for dim, entry in enumerate(spec, start=offset):
            axes = _as_axes(entry)
            if placed[dim] and axes:
                raise UserError(
                    f"rule {pattern!r} puts {axes} on dimension {dim} of {path!r}, "
                    f"where an earlier rule put {placed[dim]}; keep one of the two"
                )
            result[dim] = axes or placed[dim]
        return tuple(result)


@dataclass(frozen=True)
class FSDP:
    """Fully sharded data parallelism: each device keeps a slice of every large array.

    The largest free dimension that the axis divides is cut (the last of equals).
    Source: Rajbhandari et al. 2020, "ZeRO", stage 3, as GSPMD expresses it.

    Attributes:
      axis: The mesh axis to cut over.
      min_size: Arrays with fewer elements stay whole: gathering them costs more in
        latency than they take.
      scanned: A pattern for paths whose dimension 0 is a scan's: slicing it layer by
        layer would gather the whole stack, so it is never cut.

    Example:
      >>> from revremat.sharding import FSDP, place
      >>> place([FSDP(axis="data")], "layer/kernel", (1024, 4096), {"data": 8})
      P(None, 'data')
    """

    axis: str = "fsdp"
    min_size: int = 2**16
    scanned: str | None = None

    def place(self, path, shape, placed, axis_sizes):
        """Cut one dimension over the axis, or leave a small array whole."""
        if self.axis not in axis_sizes:
            raise UserError(_unknown_axis(self.axis, path, axis_sizes))
        size = axis_sizes[self.axis]
        if math.prod(shape) < self.min_size or size == 1:
            return None
        first = 1 if self.scanned and re.search(self.scanned, path) else 0
        free = [
            (extent, dim)
            for dim, extent in enumerate(shape)
            if dim >= first and not placed[dim] and extent % size == 0
        ]
        if not free:
            raise UserError(
                f"FSDP({self.axis!r}) finds no free dimension of {path!r} {shape} that "
                f"{size} divides; pad it, or Replicate it by name before this rule"
            )
        _, chosen = max(free)
        return tuple(
            (self.axis,) if dim == chosen else axes for dim, axes in enumerate(placed)
        )


def resolve(rules: Sequence[Rule], shapes: Any, mesh: Mesh) -> Any:
    """Decide where every array of a tree lives.

    Args:
      rules: Applied in order to every leaf; each sees what the earlier ones placed.
      shapes: A pytree whose leaves have a `shape` (arrays or `ShapeDtypeStruct`s).
      mesh: The devices; it need not exist on this machine.

    Returns:
      The tree with a `NamedSharding` at every leaf.

    Raises:
      UserError: If an axis is not in the mesh, divides no dimension it is put on, is
        used twice on an array, a `ByPath` pattern matches nothing, two that differ
        match one array, or there is a `Logical` rule and nothing has names.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> from revremat.sharding import FSDP, resolve
      >>> mesh = rr.target("cpu:4").mesh({"data": 4})
      >>> shapes = {"kernel": jax.ShapeDtypeStruct((512, 1024), jnp.float32)}
      >>> resolve([FSDP(axis="data")], shapes, mesh)["kernel"].spec
      P(None, 'data')
    """
    _check_are_rules(rules)
    axis_sizes = dict(mesh.shape)
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    paths = [jax.tree_util.keystr(key, simple=True, separator="/") for key, _ in leaves]
    rules = [r.reading(shapes) if isinstance(r, Logical) else r for r in rules]
    _refuse_idle_patterns(rules, paths)
    specs = [
        place(rules, path, tuple(leaf.shape), axis_sizes)
        for path, (_, leaf) in zip(paths, leaves, strict=True)
    ]
    return structure.unflatten([NamedSharding(mesh, spec) for spec in specs])


def place(
    rules: Sequence[Rule],
    path: str,
    shape: tuple[int, ...],
    axis_sizes: Mapping[str, int],
) -> PartitionSpec:
    """The partition spec of one array under the rules; see `resolve`.

    Args:
      rules: Applied in order.
      path: Where the array is in its tree, such as `layer/kernel`.
      shape: Of the whole array.
      axis_sizes: Devices along each mesh axis.

    Raises:
      UserError: As `resolve`.

    Example:
      >>> from revremat.sharding import FSDP, place
      >>> place([FSDP(axis="data")], "layer/bias", (4096,), {"data": 8})  # too small
      P()
    """
    placed: Placement = ((),) * len(shape)
    for rule in rules:
        result = rule.place(path, shape, placed, axis_sizes)
        if result is None:
            continue
        placed = _checked(path, shape, result, axis_sizes)
        if isinstance(rule, Replicate):
            break
    return _as_spec(placed)


def _checked(path, shape, placed, axis_sizes) -> Placement:
    """The placement without axes of size 1, once it is known to be possible."""
    used = [axis for axes in placed for axis in axes]
    for axis in used:
        if axis not in axis_sizes:
            raise UserError(_unknown_axis(axis, path, axis_sizes))
        if used.count(axis) > 1:
            raise UserError(
                f"mesh axis {axis!r} is used twice on {path!r} {shape}: {placed}; "
                "use each axis on one dimension"
            )
    for dim, axes in enumerate(placed):
        parts = math.prod(axis_sizes[axis] for axis in axes)
        if shape[dim] % parts:
            raise UserError(
                f"dimension {dim} of {path!r} {shape} is cut over {axes} into {parts} "
                f"parts, which do not divide {shape[dim]}; write a multiple of "
                f"{parts}, or a mesh with fewer devices along it"
            )
    return tuple(
        tuple(axis for axis in axes if axis_sizes[axis] > 1) for axes in placed
    )


def _check_are_rules(rules: Any) -> None:
    listed = rules if isinstance(rules, list | tuple) else [rules]
    for rule in listed:
        if isinstance(rule, AxisRules):
            raise UserError(
                "sharding rules: AxisRules is a table of names; write "
                "[sharding.Logical(rules)] to place weights by it"
            )
        if not hasattr(rule, "place"):
            raise UserError(
                f"sharding rules: {type(rule).__name__} is no rule; write a list of "
                "Logical, ByPath, FSDP or Replicate"
            )
    if listed is not rules:
        label = type(rules).__name__
        raise UserError(
            f"sharding rules: {label} stands alone; write a list of rules, [{label}("
            "...)]"
        )


def _refuse_idle_patterns(rules: Sequence[Rule], paths: list[str]) -> None:
    for rule in rules:
        if not isinstance(rule, ByPath):
            continue
        for pattern, _ in rule.table:
            if not any(re.search(pattern, path) for path in paths):
                raise UserError(
                    f"rule {pattern!r} matches none of the {len(paths)} arrays; leave "
                    "it out, or write it for paths like "
                    f"{', '.join(map(repr, paths[:3]))}"
                )


def _unknown_axis(axis: str, path: str, axis_sizes: Mapping[str, int]) -> str:
    known = ", ".join(axis_sizes)
    return (
        f"{path!r} is to be cut over {axis!r}, but the mesh has only: {known}; name "
        f"one of these in the rule, or make a mesh with {axis!r}"
    )


def _as_axes(entry: Any) -> Axes:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _as_spec(placed: Placement) -> PartitionSpec:
    entries = [
        None if not axes else axes[0] if len(axes) == 1 else axes for axes in placed
    ]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)
