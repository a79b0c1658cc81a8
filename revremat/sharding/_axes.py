"""Names of dimensions, and the mesh axes that each is cut over: one table."""

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from revremat._errors import UserError
from revremat._sources import is_users

Axes = tuple[str, ...]
"""Mesh axes that share one dimension; empty: the dimension is whole on every device."""


@dataclass(frozen=True)
class AxisRules:
    """Which mesh axes the dimensions of each name are cut over.

    Weights and activations share names and not always places: `embed` of a weight may
    be cut over the axis over which the batch of an activation is.

    Attributes:
      activations: From a dimension's name to mesh axes, for values of the program.
      weights: The same for parameters, where they differ.
      gathered: From the name of a dimension that is cut to its name once it was
        gathered: `norm_length` to `length` under sequence parallelism.
      exchanged: Mesh axes that are moved from one dimension to another, by all-to-alls:
        those of experts, or of an array's rows and columns.

    Raises:
      UserError: A name is gathered into one that has no rule, or mesh axes are no
        tuple.

    Example:
      >>> from revremat.sharding import AxisRules
      >>> rules = AxisRules({"batch": ("data",), "embed": ()})
      >>> rules.spec(("batch", "embed"), (8, 64), {"data": 4})
      P('data',)
    """

    activations: Mapping[str, Axes]
    weights: Mapping[str, Axes] = field(default_factory=dict)
    gathered: Mapping[str, str] = field(default_factory=dict)
    exchanged: Axes = ()

    def __post_init__(self):
        for name, axes in (*self.activations.items(), *self.weights.items()):
            if not isinstance(axes, tuple):
                instead = (axes,) if isinstance(axes, str) else tuple(axes or ())
                raise UserError(
                    f"AxisRules: {name!r} is cut over {axes!r}, which is no tuple of "
                    f"mesh axes; write {instead}"
                )
        for name, whole in self.gathered.items():
            for one in (name, whole):
                if one not in self.activations:
                    raise UserError(
                        f"AxisRules: {name!r} is gathered into {whole!r}, and {one!r} "
                        "has no rule; add it to `activations`"
                    )

    def __hash__(self) -> int:
        tables = self.activations, self.weights, self.gathered
        return hash((*(frozenset(table.items()) for table in tables), self.exchanged))

    def spec(
        self,
        names: Sequence[str | None],
        shape: Sequence[int],
        axis_sizes: Mapping[str, int],
        *,
        array: str = "an array",
        is_weight: bool = False,
    ) -> PartitionSpec:
        """Where an array lies whose dimensions have these names.

        Args:
          names: One for each dimension; None for one that is whole everywhere.
          shape: Of the whole array.
          axis_sizes: Devices along each mesh axis.
          array: What messages call it.
          is_weight: Whether it is a parameter.

        Raises:
          UserError: A dimension has no name or a name has no rule; an axis is not in
            the mesh, is on two dimensions, or does not divide its dimension.

        Example:
          >>> from revremat.sharding import megatron
          >>> megatron(axis="model").spec(("embed", "mlp"), (64, 256), {"model": 4})
          P(None, 'model')
        """
        table = {**self.activations, **(self.weights if is_weight else {})}
        what = f"{array} of shape {tuple(shape)} with the names {tuple(names)}"
        if len(names) != len(shape):
            raise UserError(
                f"{what}: {len(names)} names and {len(shape)} dimensions; give each "
                "dimension a name, or None"
            )
        entries: list[Axes] = []
        for dim, name in enumerate(names):
            if name is not None and name not in table:
                raise UserError(
                    f"{what}: {name!r} has no rule; write None, one of the names with "
                    f"rules ({', '.join(sorted(table))}), or a rule of its own, as in "
                    f"more={{{name!r}: ()}}"
                )
            axes = () if name is None else table[name]
            if missing := [axis for axis in axes if axis not in axis_sizes]:
                raise UserError(
                    f"{what}: {name!r} is cut over {missing[0]!r}, and the mesh has "
                    f"only {', '.join(axis_sizes)}; name one of these in the rules, or "
                    f"make a mesh with {missing[0]!r}"
                )
            axes = tuple(axis for axis in axes if axis_sizes[axis] > 1)
            parts = math.prod(axis_sizes[axis] for axis in axes)
            if shape[dim] % parts:
                raise UserError(
                    f"{what}: {name!r} is cut over {axes} into {parts} parts, which do "
                    f"not divide {shape[dim]}; write a multiple of {parts}, or a mesh "
                    "with fewer devices along it"
                )
            entries.append(axes)
        used = [axis for axes in entries for axis in axes]
        if twice := [axis for axis in used if used.count(axis) > 1]:
            both = [
                n for n, axes in zip(names, entries, strict=True) if twice[0] in axes
            ]
            raise UserError(
                f"{what}: {' and '.join(map(repr, both))} are both cut over "
                f"{twice[0]!r}, which can cut one dimension of an array; write None "
                "for the other"
            )
        while entries and not entries[-1]:
            entries.pop()
        return PartitionSpec(
            *(None if not a else a[0] if len(a) == 1 else a for a in entries)
        )

    def whole(self, names: Sequence[str | None]) -> tuple[str | None, ...]:
        """The names of an array once it was gathered.

        Args:
          names: Before that.

        Example:
          >>> from revremat.sharding import megatron
          >>> megatron(sequence=True).whole(("batch", "norm_length", "embed"))
          ('batch', 'length', 'embed')
        """
        return tuple(n if n is None else self.gathered.get(n, n) for n in names)


def megatron(
    axis: str = "model",
    *,
    sequence: bool = False,
    data: str | Sequence[str] = "data",
    fsdp: str | None = None,
    expert: str | None = None,
    context: str | None = None,
    more: Mapping[str, str | Sequence[str]] | None = None,
) -> AxisRules:
    """Tensor parallelism, with sequence parallelism on top where it is asked for.

    Products are cut over heads and hidden units, so that a layer has two gathers or
    reductions each way. With `sequence`, what lies between them (norms, dropout, the
    residual stream) is cut along the sequence over the same devices.

    Source: Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.

    Args:
      axis: The mesh axis of tensor parallelism.
      sequence: Whether `norm_length` is cut over it, too.
      data: The mesh axes over which batches are cut.
      fsdp: A mesh axis over which weights are cut along `embed`, and batches, too
        (ZeRO, stage 3); None keeps them whole.
      expert: A mesh axis over which experts are spread; None keeps them together.
      context: A mesh axis over which all of a layer is cut along the sequence, as
        `ring_attention` needs it; None keeps sequences whole.
      more: Rules for names of your own, `()` for those that stay whole.

    Returns:
      Rules for `batch`, `length`, `norm_length`, `embed`, `mlp`, `heads`, `kv_heads`,
      `kv`, `vocab`, `expert` and `layers`.

    Raises:
      UserError: One axis is given two parts to play, or `more` has one of these names.

    Example:
      >>> from revremat.sharding import megatron
      >>> rules = megatron(axis="model", sequence=True, data="data")
      >>> rules.activations["norm_length"], rules.activations["length"]
      (('model',), ())
    """
    sequences = (axis,) if sequence else ()
    parts = data, fsdp, expert, context, more
    return _rules("megatron", (axis,), sequences, *parts)


def data_parallel(
    data: str | Sequence[str] = "data",
    *,
    fsdp: str | None = None,
    more: Mapping[str, str | Sequence[str]] | None = None,
) -> AxisRules:
    """Batches are cut, and with `fsdp` weights as well (ZeRO, stage 3).

    For ZeRO of stages 1 and 2, weights stay whole and moments are placed by the rule
    `FSDP`.

    Source: Rajbhandari et al. 2020, section 5.

    Args:
      data: The mesh axes over which batches are cut.
      fsdp: A mesh axis over which weights are cut along `embed`, and batches, too.
      more: Rules for names of your own, `()` for those that stay whole.

    Returns:
      Rules for the names that `megatron` has.

    Raises:
      UserError: As `megatron`.

    Example:
      >>> from revremat.sharding import data_parallel
      >>> data_parallel(fsdp="fsdp").activations["batch"]
      ('data', 'fsdp')
    """
    return _rules("data_parallel", (), (), data, fsdp, None, None, more)


def context_parallel(
    axis: str = "context",
    *,
    data: str | Sequence[str] = "data",
    fsdp: str | None = None,
    more: Mapping[str, str | Sequence[str]] | None = None,
) -> AxisRules:
    """All of a layer is cut along the sequence; attention goes around a ring.

    Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers".

    Args:
      axis: The mesh axis over which sequences are cut.
      data: The mesh axes over which batches are cut.
      fsdp: A mesh axis over which weights are cut along `embed`, and batches, too.
      more: Rules for names of your own, `()` for those that stay whole.

    Returns:
      Rules for the names that `megatron` has.

    Raises:
      UserError: As `megatron`.

    Example:
      >>> from revremat.sharding import context_parallel
      >>> context_parallel("context").activations["length"]
      ('context',)
    """
    return _rules("context_parallel", (), (), data, fsdp, None, axis, more)


def _rules(
    label: str,
    tensor: Axes,
    sequence: Axes,
    data: str | Sequence[str],
    fsdp: str | None,
    expert: str | None,
    context: str | None,
    more: Mapping[str, str | Sequence[str]] | None,
) -> AxisRules:
    """The usual names, by what each mesh axis is for."""
    listed = lambda axis: () if axis is None else (axis,)
    batch = (data,) if isinstance(data, str) else tuple(data)
    batch += listed(fsdp)
    parts = [*tensor, *batch, *listed(context)]
    if twice := [one for one in parts if parts.count(one) > 1]:
        raise UserError(
            f"{label}: the mesh axis {twice[0]!r} stands for two kinds of "
            "parallelism; name a mesh axis for each"
        )
    table: dict[str, Axes] = {
        "batch": batch,
        "length": listed(context),
        "norm_length": (*listed(context), *sequence),
        "embed": (),
        "mlp": tensor,
        "heads": tensor,
        "kv_heads": tensor,
        "kv": (),
        "vocab": tensor,
        "expert": listed(expert),
        "layers": (),
    }
    for name, axes in (more or {}).items():
        if name in table:
            raise UserError(
                f"{label}: {name!r} has a rule, {table[name]}, and another one in "
                "`more`; write AxisRules for a table of your own"
            )
        table[name] = (axes,) if isinstance(axes, str) else tuple(axes)
    weights = {} if fsdp is None else {"embed": (fsdp,)}
    return AxisRules(table, weights, {"norm_length": "length"}, listed(expert))


def axial(
    axis: str = "model",
    *,
    data: str | Sequence[str] = "data",
    more: Mapping[str, str | Sequence[str]] | None = None,
) -> AxisRules:
    """Arrays of rows and columns, cut along the one that a layer does not attend to.

    Row attention takes values with the names `rows`, `all_columns`; column attention
    `all_rows`, `columns`. Between them is one all-to-all, and no weight is cut.

    Source: Cheng et al. 2022, "FastFold", dynamic axial parallelism.

    Args:
      axis: The mesh axis over which rows are cut, or columns.
      data: The mesh axes over which batches are cut.
      more: Rules for names of your own, `()` for those that stay whole.

    Returns:
      Rules for these names and for those that `megatron` has.

    Raises:
      UserError: As `megatron`.

    Example:
      >>> from revremat.sharding import axial
      >>> rules = axial("model")
      >>> rules.activations["rows"], rules.activations["all_rows"]
      (('model',), ())
    """
    names = {"rows": axis, "columns": axis, "all_rows": (), "all_columns": ()}
    rules = _rules("axial", (), (), data, None, None, None, {**(more or {}), **names})
    return dataclasses.replace(rules, exchanged=(axis,))


def check_laid_out_by(what: str, mesh: Any, rules: Any) -> None:
    """Refuses what is no mesh, and what is no table of names.

    Raises:
      UserError: Beginning with `what`, which was called.
    """
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise UserError(
            f"{what}: {type(mesh).__name__} is no mesh; write sharding.make_mesh("
            '{"data": 2, "model": 4}), or target.mesh of the same sizes'
        )
    if not isinstance(rules, AxisRules):
        raise UserError(
            f"{what}: {type(rules).__name__} is no table from names to mesh axes; "
            'write sharding.megatron(axis="model"), or sharding.AxisRules({...})'
        )


def users_line() -> str:
    """` at file:line` of the user's code that is running, or nothing."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f" at {frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
