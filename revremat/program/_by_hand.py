"""Functions of one scan or block, run under actions that the user wrote."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from revremat._action import Action, check_actions
from revremat.program._decision import execute, lifted
from revremat.program.arrays._avals import is_differentiable
from revremat.program.ir._ops import Op, read, run
from revremat.program.ir._placement import num_devices
from revremat.program.units._survey import survey


def act(
    f: Callable[..., Any], actions: tuple[Action, ...], label: str
) -> Callable[..., Any]:
    """A function of one scan or block, with that run under the given actions."""

    def acted(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
        found = survey(closed, [is_differentiable(aval) for aval in closed.in_avals])
        sites = {site.ops[0]: site for site in found.sites}

        def rewritten(op: Op, values: list[Any]) -> list[Any] | None:
            if op not in sites:
                return None
            check_actions(label, actions, sites[op].facts)
            # What is differentiated is seen when it happens.
            site = replace(sites[op], in_mask=None)
            constants = [atom.value for atom in lifted(site)]
            values = [*constants, *values]
            lag = int(num_devices(site.body) > 1)
            return execute(site, label, actions, values, gradient_lag=lag, by_hand=True)

        env = dict(zip(found.program.inputs, jax.tree.leaves(args), strict=True))
        run(found.program.ops, env, rewritten)
        outs = [read(env, out) for out in found.program.outputs]
        return jax.tree.structure(shapes).unflatten(outs)

    return acted
