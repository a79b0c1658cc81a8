"""A loss as a surveyed program: the common start of `trace` and `apply`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from revremat._compat import is_ref, trace_absent_kernels
from revremat._errors import UserError, arguments_told
from revremat._problem import check_sizes, check_value
from revremat._sources import source_line
from revremat.program._chosen import FoundChoice, choices_of
from revremat.program._costs import every_op
from revremat.program._fingerprint import describe, fingerprint
from revremat.program._linearize import is_inexact
from revremat.program._ops import Program, flatten
from revremat.program._sites import Survey, survey
from revremat.program._units import FoundUnit, units_of


@dataclass(frozen=True, eq=False)
class TracedLoss:
    """A loss on certain arguments.

    Attributes:
      found: Its program and the sites in it.
      units: Its units.
      fingerprint: Of the whole.
      out_tree: The structure of what it returns.
    """

    found: Survey
    units: tuple[FoundUnit, ...]
    fingerprint: str
    out_tree: Any

    @property
    def choices(self) -> tuple[FoundChoice, ...]:
        """What the program has decided by itself, in program order."""
        return choices_of(self.found)


def trace_loss(loss: Callable[..., Any], args: Sequence[Any]) -> TracedLoss:
    """Trace a loss and survey its program.

    Raises:
      UserError: The loss is no function or not scalar, an argument is not made of
        arrays, or nothing in the first one can be differentiated.
    """
    if not callable(loss):
        raise UserError(
            "a loss is a function of parameters and data; this is a "
            f"{type(loss).__name__}"
        )
    label = getattr(loss, "__name__", type(loss).__name__)
    for number, arg in enumerate(args):
        _check_arrays(label, number, arg)
    trace_absent_kernels()
    with arguments_told(label, loss, args):
        closed, shapes = jax.make_jaxpr(loss, return_shape=True)(*args)
        if any(jax.typeof(leaf).weak_type for leaf in jax.tree.leaves(args)):
            closed = _typed_strongly(loss, args, closed)
    check_value(label, shapes)
    leaves = [jax.typeof(leaf) for leaf in jax.tree.leaves(args[:1])]
    rest = len(closed.in_avals) - len(leaves)
    mask = (*map(is_inexact, leaves), *(False for _ in range(rest)))
    if not any(mask):
        raise UserError(
            f"{label}: its first argument holds no floating-point array, so there is "
            "nothing to differentiate; put the parameters first."
        )
    _check_no_refs(flatten(closed))
    found = survey(closed, mask)
    return TracedLoss(
        found=found,
        units=units_of(found, mask),
        fingerprint=fingerprint(found.program, mask),
        out_tree=jax.tree.structure(shapes),
    )


def _typed_strongly(loss: Callable[..., Any], args: Sequence[Any], closed: Any) -> Any:
    """The same program on arguments that are no longer typed weakly, if it is the same.

    As long as an array is (`jnp.full((8,), 0.1)` is, what an optimizer makes of it is
    not), it is converted wherever it meets another one, and layers may not look alike.
    """

    def strong(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        for k, leaf in enumerate(leaves):
            if jax.typeof(leaf).weak_type:
                leaves[k] = jax.lax.convert_element_type(leaf, leaf.dtype)
        return loss(*tree.unflatten(leaves))

    found = jax.make_jaxpr(strong)(*args)
    texts = [describe(flatten(one)) for one in (closed, found)]
    same = closed.out_avals == found.out_avals and texts[0] == texts[1]
    return found if same else closed


def _check_no_refs(program: Program) -> None:
    """Those that a kernel is given are its own business."""
    is_kernel = lambda closed: any(map(is_ref, closed.in_avals))
    for op in every_op(program, lambda closed: not is_kernel(closed)):
        if any(map(is_ref, (atom.aval for atom in (*op.inputs, *op.outputs)))):
            where = source_line(op.eqn) or "the loss"
            raise UserError(
                f"{where}: what a jax.Ref holds changes as the program runs, so no "
                "value of it can be kept or computed again; hand values on as results"
            )


def _check_arrays(label: str, number: int, arg: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(arg):
        if isinstance(leaf, bool | int | float | complex | np.ndarray | np.generic):
            continue
        where = f"argument {number}{jax.tree_util.keystr(path)}"
        check_sizes(f"{label}: {where}", getattr(leaf, "shape", ()))
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise UserError(
                f"{label}: {where} is {leaf!r}, which is not an array; bind it "
                "beforehand with `functools.partial` or a lambda."
            )
