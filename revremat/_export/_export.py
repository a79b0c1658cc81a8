"""Export: a plan in the words of other systems, and what they have no words for."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from revremat._action import SAVE, Action
from revremat._errors import UserError
from revremat._export._places import Lost, Places, users_place
from revremat._graph import Graph, Operation
from revremat._plan import Plan, UnitPlan
from revremat.policies import equivalents

FORMS = ("jax", "nnx", "maxtext")

# Tensors that MaxText's `remat_policy=custom` has a setting for.
MAXTEXT_NAMES = (
    *("context", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "moe_mlpwi", "moe_mlpwi_0"),
    *("moe_mlpwi_1", "moe_mlpwo", "query_proj", "key_proj", "value_proj", "kv_proj"),
    *("qkv_proj", "out_proj", "query_wa_proj", "kv_wa_proj", "mla_q", "mla_kv"),
    *("attention_out", "engram"),
)


@dataclass(frozen=True)
class Export:
    """A plan written for another system.

    Attributes:
      form: One of `FORMS`.
      text: Code or flags to paste.
      lost: What cannot be said there, a sentence each.

    Example:
      >>> import revremat as rr
      >>> print(rr.Export("jax", "# nothing to do", lost=()))
      # nothing to do
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

    Example:
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
    lost = Lost()
    if plan.gradient_barrier:
        lost.add(
            "the gradient barrier: without it the compiler may put gradients of "
            "weights off and hold the values they are computed from; use `rr.apply`"
        )
    lags = any(graph[unit.name].lags(unit.actions) for unit in plan.units)
    if plan.num_devices > 1 and lags and not plan.puts_gradients_off:
        lost.add(
            "when gradients of weights are there: the compiler may put those of "
            "unrolled layers off, which takes more memory; use `rr.apply`"
        )
    if (percent := plan.remat_pass_percent) is not None:
        lost.add(
            f"XLA's own remat pass with a limit of {percent} %: compile with "
            "`plan.compiler_options` in jax.jit"
        )
    if form == "maxtext":
        text = _maxtext(plan, graph, lost)
    else:
        text = _code(plan, graph, form, lost)
    return Export(form, text, lost.sentences())


# JAX and Flax -------------------------------------------------------------------------


def _code(plan: Plan, graph: Graph, form: str, lost: Lost) -> str:
    head = ["import jax"] if form == "jax" else ["import jax", "from flax import nnx"]
    lines = ["", "policies = jax.checkpoint_policies"]
    if plan.units:
        lines.append("# `layer` is what it was without any remat of its own.")
    has_tags = False
    for unit_plan in plan.units:
        unit = graph[unit_plan.name]
        places = Places(unit)
        begins = next(
            (f", beginning at {one}" for op in unit.operations if (one := _line(op))),
            "",
        )
        lines += ["", f"# Unit {unit.name!r}, {_count(unit.num_layers)}{begins}."]
        tags = _tags(places, unit_plan)
        lines += tags
        has_tags = has_tags or bool(tags)
        runs = list(_runs(unit_plan))
        if len(runs) > 1 and unit.is_loop:
            lost.add(
                "one scan whose layers differ: write a scan for each run; slicing its "
                "stacked weights copies them, which `rr.apply` does not",
                unit.name,
            )
        elif len(runs) > 1:
            lost.add("layers that differ: call each by the name of its run", unit.name)
        for start, stop, action, device, host in runs:
            _note_lost(places, action, [*device, *host], lost)
            where, new = "all layers", "layer"
            if len(runs) > 1:
                where, new = f"layers {start} to {stop - 1}", f"layer_{start}"
                where = where if stop - start > 1 else f"layer {start}"
            lines.append(f"# {where}")
            lines.append(f"{new} = {_wrapped(places, action, device, host, form)}")
    if has_tags:
        head.append("from jax.ad_checkpoint import checkpoint_name")
    return "\n".join([*head, *lines])


def _line(op: Operation) -> str:
    return users_place(op.source)


def _runs(plan: UnitPlan) -> Iterator[tuple[int, int, Action, list[str], list[str]]]:
    layers = zip(plan.actions, plan.device_names, plan.host_names, strict=True)
    start = 0
    for (action, device, host), run in groupby(layers):
        stop = start + len(list(run))
        yield start, stop, action, list(device), list(host)
        start = stop


def _wrapped(
    places: Places, action: Action, device: list[str], host: list[str], form: str
) -> str:
    unit = places.unit
    if _saves_all(action):
        return "layer  # as it is: unwrapped keeps less than everything_saveable"
    inputs = {v.name for v in unit.values if v.role == "input"}
    saved = _reached(places, [name for name in device if name not in inputs])
    host = _reached(places, host)
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
    prevent = "False" if unit.is_loop and action.unroll is not True else "True"
    return f"{wrap}(\n    layer,\n    policy={policy},\n    prevent_cse={prevent},\n)"


def _reached(places: Places, names: list[str]) -> list[str]:
    """What a policy names for these: their tags, or those that stand in."""
    tags = (places.tag(name) for name in names)
    return list(dict.fromkeys(tag.name for tag in tags if tag))


def _tags(places: Places, plan: UnitPlan) -> list[str]:
    """Comments that say which values are to be tagged first, and where."""
    if all(map(_saves_all, plan.actions)):
        return []
    unit = places.unit
    moved = {n for names in plan.host_names for n in names}
    runs = list(_runs(plan))
    used = moved.union(*(run[3] for run in runs if not _saves_all(run[2])))
    inputs = {v.name for v in unit.values if v.role == "input"}
    wanted = {}
    for name in sorted(used - (inputs - moved)):
        tag = places.tag(name)
        if tag is not None and not tag.given:
            wanted[tag.name] = tag
    return [
        f'# Tag first: checkpoint_name(x, "{tag.name}") on the {tag.array} {tag.where}'
        for tag in wanted.values()
    ]


def _note_lost(places: Places, action: Action, names: list[str], lost: Lost) -> None:
    unit = places.unit.name
    if action.inverts:
        lost.add(
            "INVERT recomputes a layer's input from its output; write a jax.custom_vjp "
            "around the whole stack, or use `rr.apply`",
            unit,
        )
    if action.ahead:
        ahead = [repr(name) for name in action.ahead]
        lost.add("recomputing {names} a layer early; use `rr.apply`", unit, ahead)
    if action.chunks != 1:
        lost.add(f"computing it in {action.chunks} chunks; use `rr.apply`", unit)
    if action.segment_length != 1:
        lost.add(
            f"segments of {action.segment_length} layers, whose inputs alone are "
            "kept; write a scan of "
            "checkpointed scans, or use `rr.apply`",
            unit,
        )
    if action.slots:
        lost.add(
            f"a binomial schedule for {action.slots} layers' inputs; use `rr.apply`",
            unit,
        )
    if action.unroll:
        lost.add(f"unrolling; give `unroll={action.unroll}` to its jax.lax.scan", unit)
    for name in () if _saves_all(action) else names:
        if name in places.of_the_derivative:
            reason = (
                "{names} exist in the derivative alone, where no tag can be put; "
                "jax.checkpoint recomputes them, `rr.apply` does not"
            )
            lost.add(reason, unit, [repr(name)])
        elif kind := places.kept_otherwise(name):
            reason = (
                "of {names} the derivative keeps another form than a tag does; "
                "jax.checkpoint recomputes them, `rr.apply` does not"
            )
            lost.add(reason, unit, [f"{name!r} ({kind})"])
        elif places.tag(name) is None:
            reason = (
                "{names} cannot be expressed there, being made inside of library "
                "calls; jax.checkpoint recomputes them, use `rr.apply`"
            )
            lost.add(reason, unit, [repr(name)])


def _saves_all(action: Action) -> bool:
    return action(unroll=False) == SAVE


def _count(layers: int) -> str:
    return f"{layers} layer{'s' if layers != 1 else ''}"


# MaxText ------------------------------------------------------------------------------


def _maxtext(plan: Plan, graph: Graph, lost: Lost) -> str:
    if not plan.units:
        return "remat_policy=minimal_with_context"
    unit_plan = max(plan.units, key=lambda u: len(u.actions))
    unit = graph[unit_plan.name]
    for other in plan.units:
        if other is not unit_plan:
            lost.add("MaxText decides its decoder layers only", other.name)
    layers = zip(
        unit_plan.actions, unit_plan.device_names, unit_plan.host_names, strict=True
    )
    counts = Counter(layers)
    (action, device, host), number = counts.most_common(1)[0]
    if len(counts) > 1:
        lost.add(
            f"MaxText gives every layer the same: these are the flags of {number} of "
            f"{len(unit_plan.actions)} layers"
        )
    places = Places(unit)
    _note_lost(places, action(unroll=False), [*device, *host], lost)
    loops = ["scan_layers=False"] if action.unroll is True else []
    if _saves_all(action):
        lost.add(
            "MaxText keeps no layer whole; minimal_with_context keeps the results of "
            "its matrix products and of its attention"
        )
        return " ".join(["remat_policy=minimal_with_context", *loops])
    inputs = {v.name for v in unit.values if v.role == "input"}
    kept = dict.fromkeys(sorted(set(device) - inputs), "device")
    kept |= dict.fromkeys(sorted(set(host) - inputs), "offload")
    for name in sorted(set(kept) - set(MAXTEXT_NAMES)):
        where, tag = kept.pop(name), places.tag(name)
        others = [other for other in equivalents(unit, name) if other in MAXTEXT_NAMES]
        if tag is not None and tag.name in MAXTEXT_NAMES:
            kept.setdefault(tag.name, where)
        elif others:
            kept.setdefault(others[0], where)
            lost.add(
                "MaxText has no setting for {names}; it keeps as many bytes of tagged "
                "values next to them, and recomputes what needs the others themselves",
                "",
                [f"{name!r} ({others[0]})"],
            )
        else:
            lost.add(
                "MaxText has no setting for {names}; it recomputes them",
                "",
                [repr(name)],
            )
    layer_input = "offload" if inputs & set(host) else "device"
    if not kept and layer_input == "device":
        return " ".join(["remat_policy=full", *loops])
    flags = [f"{name}={where}" for name, where in sorted(kept.items())]
    return " ".join(
        ["remat_policy=custom", f"decoder_layer_input={layer_input}", *flags, *loops]
    )
