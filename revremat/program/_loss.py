"""A loss as a surveyed program: the common start of `trace` and `apply`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from revremat._arguments import Arguments, Leaf, Outcome, outcome_of, take_apart
from revremat._arguments._closed_over import watched
from revremat._compat import is_ref, trace_absent_kernels
from revremat._errors import UserError, arguments_told
from revremat._problem import check_sizes, check_value
from revremat._sources import source_line
from revremat.program._decision import Decision
from revremat.program._fixed_units import FoundActions, actions_in
from revremat.program._rewrite import rewrite
from revremat.program.arrays._avals import is_differentiable
from revremat.program.ir._costs import every_op
from revremat.program.ir._fingerprint import describe, fingerprint
from revremat.program.ir._ops import Program, flatten
from revremat.program.ir._passes import depends
from revremat.program.ir._placement import num_devices
from revremat.program.units._sites import Survey
from revremat.program.units._survey import survey
from revremat.program.units._units import FoundUnit, units_of


@dataclass(frozen=True, eq=False)
class TracedLoss:
    """A loss on certain arguments.

    Attributes:
      found: Its program and the sites in it.
      units: Its units.
      fingerprint: Of the whole.
      arguments: What it was traced on.
      outcome: What it returns, and what it writes into its arguments.
    """

    found: Survey
    units: tuple[FoundUnit, ...]
    fingerprint: str
    arguments: Arguments
    outcome: Outcome

    def run(self, decisions: Sequence[Decision], gradient_barrier: bool = False) -> Any:
        """Runs it with units replaced: what it returns.

        Changes of its arguments are written into them, once, after the forward pass.

        Args:
          decisions: About its units.
          gradient_barrier: As of `Plan`.

        Raises:
          UserError: What a unit would keep differs from what the plan says, or the
            arguments may not be changed here.
        """
        outs = rewrite(self.found, decisions, self.arguments.values, gradient_barrier)
        return self.outcome.write(self._untangled(outs))

    def _untangled(self, outs: Sequence[Any]) -> list[Any]:
        """Without derivatives where what is written into arguments has none.

        Units give all of their results one, so that they would belong to the
        transformation that the loss is called in and be of no use after it.
        """
        wanted = self.arguments.wanted(is_differentiable)
        on = depends(self.found.program, wanted)
        count = self.outcome.num_returned
        written = zip(outs[count:], on[count:], strict=True)
        stop = jax.lax.stop_gradient
        return [*outs[:count], *(v if on else stop(v) for v, on in written)]

    @property
    def num_devices(self) -> int:
        """How many devices compute it, as far as it and its arguments say so."""
        given = (getattr(x, "sharding", None) for x in self.arguments.values)
        cut = (
            s for s in given if isinstance(s, Sharding) and not s.is_fully_replicated
        )
        told = [s.num_devices for s in cut]
        return max(*told, num_devices(self.found.program), 1)

    @property
    def fixed_units(self) -> tuple[FoundActions, ...]:
        """What the program has decided by itself, in program order."""
        return actions_in(self.found)


def trace_loss(
    loss: Callable[..., Any], args: Sequence[Any], *, keep_checkpoints: bool = False
) -> TracedLoss:
    """Trace a loss and survey its program.

    Args:
      loss: A function.
      args: Its arguments.
      keep_checkpoints: Whether its regions of `jax.checkpoint` stay as they are.

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
    arguments = take_apart(args)
    for leaf in arguments.leaves:
        _check_array(label, leaf)
    trace_absent_kernels()
    outcomes: list[Outcome] = []

    def run(*values: Any) -> list[Any]:
        copy = arguments.copy(values)
        out = loss(*copy.args)
        check_value(label, out)
        outcome, arrays = outcome_of(copy, out)
        outcomes.append(outcome)
        return arrays

    values = arguments.values
    with watched(label, loss, arguments.statics()), arguments_told(label, loss, args):
        closed = jax.make_jaxpr(run)(*values)
        if any(jax.typeof(value).weak_type for value in values):
            closed = _typed_strongly(run, values, closed)
    mask = arguments.wanted(is_differentiable)
    if not any(mask):
        raise UserError(
            f"{label}: its first argument holds no floating-point array, so there is "
            "nothing to differentiate; put the parameters first."
        )
    _check_no_refs(flatten(closed))
    found = survey(closed, mask, keep_checkpoints=keep_checkpoints, segments=True)
    return TracedLoss(
        found=found,
        units=units_of(found, mask),
        fingerprint=fingerprint(found.program, mask),
        arguments=arguments,
        outcome=outcomes[0],
    )


def _typed_strongly(run: Callable[..., Any], values: Sequence[Any], closed: Any) -> Any:
    """The same program on arguments that are no longer typed weakly, if it is the same.

    As long as an array is (`jnp.full((8,), 0.1)` is, what an optimizer makes of it is
    not), it is converted wherever it meets another one, and layers may not look alike.
    """

    def strong(*values: Any) -> Any:
        return run(
            *(
                jax.lax.convert_element_type(v, v.dtype)
                if jax.typeof(v).weak_type
                else v
                for v in values
            )
        )

    found = jax.make_jaxpr(strong)(*values)
    texts = [describe(flatten(one)) for one in (closed, found)]
    same = closed.out_avals == found.out_avals and texts[0] == texts[1]
    return found if same else closed


def _check_no_refs(program: Program) -> None:
    """Those that a kernel is given are its own business."""
    is_kernel = lambda closed: any(map(is_ref, closed.in_avals))
    for op in every_op(program, lambda closed: not is_kernel(closed)):
        if any(map(is_ref, (atom.aval for atom in (*op.inputs, *op.outputs)))):
            where = source_line(op) or "the loss"
            raise UserError(
                f"{where}: what a jax.Ref holds changes as the program runs, so no "
                "value of it can be kept or computed again; hand values on as results"
            )


def _check_array(label: str, leaf: Leaf) -> None:
    value, where = leaf.value, leaf.where
    if isinstance(value, bool | int | float | complex | np.ndarray | np.generic):
        return
    check_sizes(f"{label}: {where}", getattr(value, "shape", ()))
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise UserError(
            f"{label}: {where} is {value!r}, which is not an array; bind it "
            "beforehand with `functools.partial` or a lambda."
        )
