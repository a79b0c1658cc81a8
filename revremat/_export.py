"""Export: a plan in the words of other systems, and what they have no words for."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from revremat._errors import UserError
from revremat._graph import Graph, Unit
from revremat._plan import SAVE, Action, Plan, UnitPlan

FORMS = ("jax", "nnx", "maxtext")

# Tensors that MaxText's `remat_policy=custom` has a setting for.
MAXTEXT_NAMES = (
    *("context", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "moe_mlpwi", "moe_mlpwi_0"),
    *("moe_mlpwi_1", "moe_mlpwo", "query_proj", "key_proj", "value_proj", "kv_proj"),
    *("qkv_proj", "out_proj", "query_wa_proj", "kv_wa_proj", "mla_q", "mla_kv"),
    *("attention_out", "engram"),
)
# Their derivatives keep a form of their result that a tag on it does not reach.
_KEEP_THEIR_RESULT = {"tanh", "exp", "exp2", "sqrt", "rsqrt", "cbrt", "logistic"}


@dataclass(frozen=True)
class Export:
    """A plan written for another system.

    Attributes:
      form: One of `FORMS`.
      text: Code or flags to paste.
      lost: What cannot be said there, a sentence each.
    """

    form: str
    text: str
    lost: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.text, *(f"# Not expressed: {s}" for s in self.lost)])


def export(plan: Plan, graph: Graph, form: str = "jax") -> Export:
    """Write a plan as JAX policies, as `nnx.remat`, or as MaxText flags.

    Args:
      plan: From `rr.search`, or made by hand.
      graph: What `rr.trace` makes of the plan's program: it knows which names are tags
        of the user's, and where the other values are made.
      form: `"jax"`, `"nnx"` or `"maxtext"`.

    Returns:
      An `Export`: text to paste, and sentences on what it does not express.

    Raises:
      UserError: An unknown form, or a plan of another program.

    >>> import jax, jax.numpy as jnp, revremat as rr
    >>> w = jax.ShapeDtypeStruct((4, 8, 8), jnp.float32)
    >>> x = jax.ShapeDtypeStruct((2, 8), jnp.float32)
    >>> layer = lambda w, x: x + jnp.sin(rr.name(x @ w, "up"))
    >>> graph = rr.trace(lambda w, x: rr.stack(layer, w, x).sum(), w, x)
    >>> plan = graph.plan({"stack": rr.RECOMPUTE(save=["up"])})
    >>> print(rr.export(plan, graph, "maxtext").text)
    remat_policy=full
    """
    if form not in FORMS:
        raise UserError(f"unknown form {form!r}: write one of {', '.join(FORMS)}")
    if plan.program != graph.fingerprint:
        raise UserError(
            f"the plan was made for another program (fingerprint {plan.program}, this "
            f"one has {graph.fingerprint}); search again."
        )
    for unit in plan.units:
        if graph[unit.name].plan(unit.actions) != unit:
            raise UserError(
                f"the plan says of unit {unit.name!r} what its actions do not do in "
                "this program; search again."
            )
    lost: list[str] = []
    if plan.in_order:
        lost.append(
            "computing layers' gradients in order: without, the compiler may put "
            "those of weights off and hold what they are made of; use `rr.apply`"
        )
    if form == "maxtext":
        text = _maxtext(plan, graph, lost)
    else:
        text = _code(plan, graph, form, lost)
    return Export(form, text, tuple(dict.fromkeys(lost)))


# JAX and Flax -------------------------------------------------------------------------


def _code(plan: Plan, graph: Graph, form: str, lost: list[str]) -> str:
    head = ["import jax"] if form == "jax" else ["import jax", "from flax import nnx"]
    lines = [*head, "", "policies = jax.checkpoint_policies"]
    if plan.units:
        lines.append("# `layer` is what it was without any remat of its own.")
    for unit_plan in plan.units:
        unit = graph[unit_plan.name]
        sources = (op.source for op in unit.operations)
        begins = next((f", beginning at {one}" for one in sources if one), "")
        lines += ["", f"# Unit {unit.name!r}, {_count(unit.num_layers)}{begins}."]
        lines += _tags(unit, unit_plan)
        runs = list(_runs(unit_plan))
        if len(runs) > 1 and unit.kind == "scan":
            lost.append(
                f"unit {unit.name!r} is one scan whose layers differ: write a scan for "
                "each run; slicing its stacked weights copies them, which `rr.apply` "
                "does not"
            )
        elif len(runs) > 1:
            lost.append(
                f"unit {unit.name!r} has layers that differ: call each by the name of "
                "its run"
            )
        for start, stop, action, device, host in runs:
            lost += _inexpressible(unit, action, [*device, *host])
            where, new = "all layers", "layer"
            if len(runs) > 1:
                where, new = f"layers {start} to {stop - 1}", f"layer_{start}"
            lines.append(f"# {where}")
            lines.append(f"{new} = {_wrapped(unit, action, device, host, form)}")
    return "\n".join(lines)


def _runs(plan: UnitPlan) -> Iterator[tuple[int, int, Action, list[str], list[str]]]:
    layers = zip(plan.actions, plan.device_names, plan.host_names, strict=True)
    start = 0
    for (action, device, host), run in groupby(layers):
        stop = start + len(list(run))
        yield start, stop, action, list(device), list(host)
        start = stop


def _wrapped(
    unit: Unit, action: Action, device: list[str], host: list[str], form: str
) -> str:
    if _as_written(action):
        return "layer  # as it is: unwrapped keeps less than everything_saveable"
    inputs = {v.name for v in unit.values if v.role == "input"}
    beyond = _of_the_derivative(unit)
    saved = [name for name in device if name not in inputs | beyond]
    host = [name for name in host if name not in beyond]
    listed = ", ".join(f'"{name}"' for name in saved)
    if host:
        moved = ", ".join(f'"{name}"' for name in host)
        policy = (
            "policies.save_and_offload_only_these_names(\n"
            f"        names_which_can_be_saved=[{listed}],\n"
            f"        names_which_can_be_offloaded=[{moved}],\n"
            '        offload_src="device",\n'
            '        offload_dst="pinned_host",\n'
            "    )"
        )
    elif saved:
        policy = f"policies.save_only_these_names({listed})"
    else:
        policy = "policies.nothing_saveable"
    wrap = "jax.checkpoint" if form == "jax" else "nnx.remat"
    # Inside a scan nothing can be merged with the forward pass.
    prevent = "False" if unit.kind == "scan" and not action.unroll else "True"
    return f"{wrap}(\n    layer,\n    policy={policy},\n    prevent_cse={prevent},\n)"


def _tags(unit: Unit, plan: UnitPlan) -> list[str]:
    """Comments that say which values are to be tagged first."""
    if all(map(_as_written, plan.actions)):
        return []
    moved = {n for names in plan.host_names for n in names}
    runs = list(_runs(plan))
    used = moved.union(*(run[3] for run in runs if not _as_written(run[2])))
    beyond = _of_the_derivative(unit)
    residuals = {r.name: r for r in unit.residuals}
    lines = []
    for name in sorted(used):
        value = unit.values[unit.position[name]]
        is_input = value.role == "input"
        if value.given or (is_input and name not in moved) or name in beyond:
            continue
        source = residuals[name].source if name in residuals else ""
        at = f" made at {source}" if source else " the layer is given" * is_input
        shape = f"{value.dtype}{list(value.shape)}"
        lines.append(
            f'# Tag first: checkpoint_name(x, "{name}") on the {shape}{at}; '
            "from jax.ad_checkpoint import checkpoint_name"
        )
    return lines


def _of_the_derivative(unit: Unit) -> set[str]:
    """Values that the layer itself never makes, such as the cosine for a sine."""
    needed = set(unit.outputs)
    for op in reversed(unit.operations):
        if needed.intersection(op.outputs):
            needed.update(op.inputs)
    made = {k for op in unit.operations for k in op.outputs}
    return {unit.values[k].name for k in made - needed}


def _inexpressible(unit: Unit, action: Action, names: list[str]) -> Iterator[str]:
    if action.kind == "invert":
        yield (
            f"unit {unit.name!r}: INVERT rebuilds a layer's input from its output; "
            "write a jax.custom_vjp around the whole stack, or use `rr.apply`"
        )
    if action.ahead:
        yield f"unit {unit.name!r}: rebuilding {', '.join(action.ahead)} a layer early"
    if action.chunks != 1:
        yield f"unit {unit.name!r}: computing it in {action.chunks} chunks"
    if action.every != 1:
        yield (
            f"unit {unit.name!r}: keeping the input of every {action.every}th layer "
            "alone; write a scan of checkpointed scans, or use `rr.apply`"
        )
    if action.unroll:
        yield (
            f"unit {unit.name!r}: writing layers out; give `unroll=` to their "
            "jax.lax.scan, or call them in a Python loop"
        )
    beyond = _of_the_derivative(unit)
    for name in () if _as_written(action) else names:
        if name in beyond:
            yield (
                f"unit {unit.name!r}: {name!r} is made by the derivative alone, where "
                "no tag can be put; jax.checkpoint rebuilds it"
            )
            continue
        maker = unit.maker.get(unit.position[name])
        kind = "" if maker is None else maker.kind
        if kind in _KEEP_THEIR_RESULT:
            yield (
                f"unit {unit.name!r}: {name!r} is the result of {kind}, whose "
                "derivative keeps another form of it than a tag does; jax.checkpoint "
                "rebuilds it all the same"
            )


def _as_written(action: Action) -> bool:
    return action(unroll=False) == SAVE


def _count(layers: int) -> str:
    return f"{layers} layer{'s' if layers != 1 else ''}"


# MaxText ------------------------------------------------------------------------------


def _maxtext(plan: Plan, graph: Graph, lost: list[str]) -> str:
    if not plan.units:
        return "remat_policy=minimal_with_context"
    unit_plan = max(plan.units, key=lambda u: len(u.actions))
    unit = graph[unit_plan.name]
    for other in plan.units:
        if other is not unit_plan:
            lost.append(f"unit {other.name!r}: MaxText decides its decoder layers only")
    layers = zip(
        unit_plan.actions, unit_plan.device_names, unit_plan.host_names, strict=True
    )
    counts = Counter(layers)
    (action, device, host), number = counts.most_common(1)[0]
    if len(counts) > 1:
        lost.append(
            f"MaxText gives every layer the same: these are the flags of {number} of "
            f"{len(unit_plan.actions)} layers"
        )
    lost += _inexpressible(unit, action(unroll=False), [*device, *host])
    loops = ["scan_layers=False"] if action.unroll else []
    if _as_written(action):
        lost.append(
            "MaxText keeps no layer whole; minimal_with_context keeps the results of "
            "its matrix products and of its attention"
        )
        return " ".join(["remat_policy=minimal_with_context", *loops])
    inputs = {v.name for v in unit.values if v.role == "input"}
    places = dict.fromkeys(sorted(set(device) - inputs), "device")
    places |= dict.fromkeys(sorted(set(host) - inputs), "offload")
    for name in sorted(set(places) - set(MAXTEXT_NAMES)):
        lost.append(f"{name!r} is no tensor that MaxText has a setting for")
        del places[name]
    layer_input = "offload" if inputs & set(host) else "device"
    if not places and layer_input == "device":
        return " ".join(["remat_policy=full", *loops])
    flags = [f"{name}={where}" for name, where in places.items()]
    return " ".join(
        ["remat_policy=custom", f"decoder_layer_input={layer_input}", *flags, *loops]
    )
