"""Sets that have names elsewhere: MaxText's policies, Megatron's selective recompute.

They are written for transformers. Tags with MaxText's names say which value plays which
part; without them the products of a layer tell by what they take and where their
results go, so that untagged programs have the same sets.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from revremat._action import RECOMPUTE, SAVE, Action
from revremat._errors import UserError
from revremat._graph import Operation, Unit
from revremat.policies._bans import bans
from revremat.policies._joint import Joint, is_kernel
from revremat.policies._mincut import Weights, cut
from revremat.policies._tagged import equivalents

_TAGS = {
    "qkv": ("query_proj", "key_proj", "value_proj", "qkv_proj", "kv_proj"),
    "context": ("context",),
    "out": ("out_proj",),
    "mlp_in": ("mlpwi", "mlpwi_0", "mlpwi_1"),
    "mlp_out": ("mlpwo",),
}
# What MaxText's policies keep, and what they offload.
_MAXTEXT = {
    "save_out_proj": (("out",), ()),
    "save_qkv_proj": (("qkv",), ()),
    "save_dot_except_mlp": (("qkv", "out"), ()),
    "save_dot_except_mlpwi": (("qkv", "out", "mlp_out"), ()),
    "save_dot_with_context_except_mlp": (("qkv", "context", "out"), ()),
    "minimal": (("qkv", "out", "mlp_in", "mlp_out"), ()),
    "minimal_with_context": (("qkv", "context", "out", "mlp_in", "mlp_out"), ()),
    "qkv_proj_offloaded": ((), ("qkv",)),
    "minimal_offloaded": ((), ("qkv", "out", "mlp_in", "mlp_out")),
}
NAMED = (*_MAXTEXT, "selective", "balanced")


@dataclass(frozen=True)
class Roles:
    """The parts that values of a transformer's layer play, by name.

    Attributes:
      qkv: Queries, keys and values, as their products make them.
      context: What attention makes.
      out: The product that takes it back to the stream.
      mlp_in: The products that enter the MLP.
      mlp_out: Those that leave it.
      inside: What attention makes on the way: scores, weights.
    """

    qkv: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    mlp_in: tuple[str, ...] = ()
    mlp_out: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()


def roles(unit: Unit) -> Roles:
    """Who is who in a layer, by MaxText's tags if there are any, else by its products.

    A product of activations, or a kernel, is attention if products with weights stand
    on both sides of it. Of the others, the ones whose results have the stream's shape
    leave the MLP.

    Args:
      unit: From a graph.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import roles
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> type(roles(rr.trace(loss, w, x)["stack"])).__name__
      'Roles'
    """
    return _Reader(unit).roles()


def named(unit: Unit, name: str) -> Action | None:
    """A set that has a name elsewhere, as an action; None where it does not apply.

    The names are those of MaxText's `remat_policy`; `selective`, which keeps everything
    but attention's inside (Korthikanti et al., "Reducing Activation Recomputation in
    Large Transformer Models", 2022; None where attention is a kernel, with nothing left
    to drop); and `balanced`, which recomputes only what is elementwise: norms'
    results and products of activations (Yuan et al., "Accelerating the Training of
    Large Language Models using Efficient Activation Rematerialization and Optimal
    Hybrid Parallelism", 2024).

    Args:
      unit: From a graph.
      name: One of `NAMED`.

    Raises:
      KeyError: No set of that name.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import named
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> print(named(rr.trace(loss, w, x)["stack"], "save_qkv_proj"))  # no attention
      None
    """
    if name not in NAMED:
        raise KeyError(name)
    return _named(unit, name, roles(unit))


def named_sets(unit: Unit) -> dict[str, Action]:
    """All of them that apply."""
    parts = roles(unit)
    found = {name: _named(unit, name, parts) for name in NAMED}
    return {name: action for name, action in found.items() if action is not None}


def _named(unit: Unit, name: str, parts: Roles) -> Action | None:
    if name == "balanced":
        joint = Joint(unit)
        banned = bans(joint, ("compute-intensive", "reduction"))
        found = cut(joint, Weights(1.0, 0.0, 0.0), banned)
        made = (unit.values[k] for k in found.kept if unit.values[k].role == "made")
        return RECOMPUTE(save=(value.name for value in made))
    if name == "selective":
        return _selective(unit, parts)
    save, offload = _MAXTEXT[name]
    if not all(getattr(parts, role) for role in save + offload):
        return None
    listed = lambda chosen: [n for role in chosen for n in getattr(parts, role)]
    return RECOMPUTE(save=listed(save), offload=listed(offload))


def layers(unit: Unit, method: str, num_layers: int) -> tuple[Action, ...]:
    """Megatron's ways to choose layers: which of them recompute everything.

    Args:
      unit: A stack.
      method: `"block"`, the first `num_layers` of it; `"uniform"`, every one, in groups
        of `num_layers` that keep their first layer's input alone: groups of 1.
      num_layers: As in Megatron's `--recompute-num-layers`.

    Raises:
      UserError: Another method, a group of several layers, or more layers than there
        are.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import layers
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> layers(rr.trace(loss, w, x)["stack"], "block", 1)
      (RECOMPUTE, SAVE, SAVE, SAVE)
    """
    if method not in ("block", "uniform"):
        raise UserError(f"{method!r} is no method; write 'block' or 'uniform'.")
    if method == "uniform" and num_layers != 1:
        raise UserError(
            f"every layer's input is kept, so uniform groups have 1 layer, not "
            f"{num_layers}; make a block of {num_layers} layers and stack those."
        )
    if not 0 <= num_layers <= unit.num_layers:
        raise UserError(
            f"unit {unit.name!r} has {unit.num_layers} layers, not {num_layers}."
        )
    recomputed = unit.num_layers if method == "uniform" else num_layers
    return (RECOMPUTE,) * recomputed + (SAVE,) * (unit.num_layers - recomputed)


def _selective(unit: Unit, parts: Roles) -> Action | None:
    inside = set(parts.inside)
    kept = unit.kept(SAVE).saved
    if inside.isdisjoint(kept):
        return None
    outside = (name for name in kept if name not in inside)
    return RECOMPUTE(save=dict.fromkeys(_shard_of(unit, name) for name in outside))


def _shard_of(unit: Unit, name: str) -> str:
    """What a value was gathered from, by the user's tag if it has one; else itself.

    A device keeps its shard, and the gather is run again (section 4.2.2 there).
    """
    op = unit.maker.get(unit.position[name])
    if op is None or not op.sent_bytes or len(op.inputs) != 1:
        return name
    (shard,), whole = (unit.values[k] for k in op.inputs), unit.values[op.outputs[0]]
    if not shard.name or not shard.is_decided or shard.num_bytes >= whole.num_bytes:
        return name
    return next(iter(equivalents(unit, shard.name)), shard.name)


class _Reader:
    """Follows a unit's products forward and back."""

    def __init__(self, unit: Unit):
        self.unit = unit
        self.made = {k for k, v in enumerate(unit.values) if v.is_decided}
        self.users: dict[int, list[Operation]] = {}
        for op in unit.operations:
            for k in set(op.inputs):
                self.users.setdefault(k, []).append(op)
        products = [op for op in unit.operations if op.kind == "dot_general"]
        by_weight = lambda op: len(self.made & set(op.inputs)) == 1
        self.with_weights = [op for op in products if by_weight(op)]
        mixes = [op for op in products if not by_weight(op)]
        mixes += [op for op in unit.operations if is_kernel(op)]
        self.attention = [
            op
            for op in mixes
            if self.before(op.inputs, self.with_weights)
            and self.after(op.outputs, self.with_weights)
        ]

    def roles(self) -> Roles:
        tagged = self.tagged()
        ends = [
            op for op in self.attention if not self.after(op.outputs, self.attention)
        ]
        qkv, out, mlp_in, mlp_out = [], [], [], []
        for op in ends:
            for user in self.after(op.outputs, self.with_weights):
                out += [user] if user not in out else []
        stream = {self.unit.values[k].shape for op in out for k in op.outputs}
        stream = stream or {self.unit.values[k].shape for k in self.unit.outputs}
        for op in self.with_weights:
            next_ones = self.after(op.outputs, self.with_weights + self.attention)
            if op in out:
                continue
            if any(user in self.attention for user in next_ones):
                qkv.append(op)
            elif {self.unit.values[k].shape for k in op.outputs} <= stream:
                mlp_out.append(op)
            else:
                mlp_in.append(op)
        if not self.attention:
            return tagged
        return Roles(
            qkv=tagged.qkv or self.results(qkv),
            context=tagged.context or self.contexts(ends, out),
            out=tagged.out or self.results(out),
            mlp_in=tagged.mlp_in or self.results(mlp_in),
            mlp_out=tagged.mlp_out or self.results(mlp_out),
            inside=self.inside(ends),
        )

    def tagged(self) -> Roles:
        given = {v.name for v in self.unit.values if v.given}
        found = {
            role: tuple(n for n in names if n in given) for role, names in _TAGS.items()
        }
        return Roles(**found)

    def results(self, ops: Iterable[Operation]) -> tuple[str, ...]:
        names = (self.unit.values[k].name for op in ops for k in op.outputs)
        return tuple(name for name in names if name)

    def contexts(
        self, ends: Iterable[Operation], out: list[Operation]
    ) -> tuple[str, ...]:
        """What the products behind attention take, made of its last product."""
        taken = {k for op in out for k in op.inputs}
        found = []
        for end in ends:
            if is_kernel(end):  # which runs again unless all that it gives is there
                found += [self.unit.values[k].name for k in end.outputs]
                continue
            below = self.reached(end.outputs) | set(end.outputs)
            found += [self.unit.values[k].name for k in sorted(below & taken)]
        return tuple(name for name in dict.fromkeys(found) if name)

    def inside(self, ends: Iterable[Operation]) -> tuple[str, ...]:
        """What attention's first products lead to on the way to its last ones."""
        last = {k for op in ends for k in op.outputs}
        first = {k for op in self.attention for k in op.outputs} - last
        below = (first | self.reached(first)) - last - self.reached(last)
        names = (self.unit.values[k].name for k in sorted(below))
        return tuple(name for name in names if name)

    def reached(self, values: Iterable[int]) -> set[int]:
        """What is made of values."""
        found, start = set(), set(values)
        for op in self.unit.operations:
            if not (start | found).isdisjoint(op.inputs):
                found.update(op.outputs)
        return found

    def before(self, values: Iterable[int], wanted: list[Operation]) -> list[Operation]:
        """The nearest operations of a kind that values are made by."""
        return self._nearest(values, wanted, forward=False)

    def after(self, values: Iterable[int], wanted: list[Operation]) -> list[Operation]:
        """The nearest operations of a kind that take what is made of values."""
        return self._nearest(values, wanted, forward=True)

    def _nearest(
        self, values: Iterable[int], wanted: list[Operation], *, forward: bool
    ) -> list[Operation]:
        stops, found, seen = {id(op) for op in wanted}, {}, set()
        left = list(values)
        while left:
            k = left.pop()
            if k in seen or k not in self.made:
                continue
            seen.add(k)
            makers = [self.unit.maker[k]] if k in self.unit.maker else []
            for op in self.users.get(k, []) if forward else makers:
                if id(op) in stops:
                    found[id(op)] = op
                else:
                    left += op.outputs if forward else op.inputs
        return list(found.values())
