"""Action: where one layer's residuals come from; Facts: of a unit that may take it."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from revremat._errors import UserError
from revremat._io._json import names, typed

KINDS = ("save", "recompute", "offload", "invert")


@dataclass(frozen=True)
class Action:
    """How one layer's residuals are restored for the backward pass.

    The kind says what happens to everything not listed; use `SAVE`, `RECOMPUTE`,
    `OFFLOAD` and `INVERT`, and call them to make exceptions:

    Example:
      >>> RECOMPUTE(save=["attn_out"], offload=["qkv"])
      RECOMPUTE(save=['attn_out'], offload=['qkv'])

    Attributes:
      kind: `"save"` keeps on the device whatever plain autodiff would; `"recompute"`
        keeps what is listed and the layer's input, and recomputes the rest from those;
        `"offload"` keeps in host memory whatever plain autodiff would; `"invert"` is
        recompute with the layer's input recomputed from its output by the layer's
        inverse.
      save: Names of values kept on the device.
      offload: Names of values kept in host memory.
      ahead: Names of values recomputed one layer early, while the gradients of the
        layer above are computed, so that the recomputing can hide under communication.
        With INVERT the layer is undone then, and all that this makes is at hand (Zhu
        and Mangalam, 2023, PaReprop).
      chunks: For a unit that can be split (`rr.block(..., split=...)`): how many pieces
        it is computed in, one after the other; 1 computes it whole.
      segment_length: For a stack: neighbouring layers of this action form segments of
        so many, and only a segment's input is kept. In the backward pass a segment is
        run forward once more, and the rest of the action says what its layers keep from
        there on (Chen et al., 2016: of N layers, segments of sqrt(N)). 1 means that
        there are no segments.
      slots: For a loop, with RECOMPUTE: of neighbouring layers of this action, the
        inputs of so many are kept at a time, the first one's included, and one more
        while layers are run on. Layers run again as few times as that allows (Griewank
        and Walther, 2000, revolve). 0 keeps all inputs.
      unroll: For a stack: its layers are unrolled one after the other, where they
        would be iterations of a loop. What they keep then lies where it was made and is
        not copied into a stack of all layers' values and out of it again; the program
        is longer, and so is compiling it. With a number there is a loop still, and an
        iteration of it runs so many layers, as `lax.scan(..., unroll=4)` does.
    """

    kind: str
    save: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()
    chunks: int = 1
    segment_length: int = 1
    unroll: bool | int = False
    slots: int = 0

    def __post_init__(self):
        if not is_unroll(self.unroll):
            raise UserError(
                f"unroll={self.unroll!r} says nothing: write True for all layers, "
                "False for none, or how many an iteration runs, 2 or more"
            )
        if type(self.chunks) is not int or self.chunks < 1:
            raise UserError(
                f"chunks={self.chunks!r} is no number of pieces: write 1 for the "
                "whole, or how many"
            )
        if isinstance(self.segment_length, bool) or not isinstance(
            self.segment_length, int
        ):
            raise UserError(
                f"segment_length={self.segment_length!r} is no number of layers; "
                "write 2 or 8"
            )
        if self.segment_length < 1:
            raise UserError(
                f"segment_length={self.segment_length} forms no segments: write 1 for "
                "none, or how many layers a segment has"
            )
        if type(self.slots) is not int or self.slots < 0:
            raise UserError(
                f"slots={self.slots!r} is no number of inputs: write 0 to keep all, or "
                "how many are kept at a time"
            )

    def __call__(
        self,
        save: Iterable[str] = (),
        offload: Iterable[str] = (),
        ahead: Iterable[str] = (),
        chunks: int | None = None,
        segment_length: int | None = None,
        unroll: bool | int | None = None,
        slots: int | None = None,
    ) -> "Action":
        """This action, with these values treated otherwise (names are sorted).

        Raises:
          UserError: Names are no list of names, or a number is none.
        """
        for key, given in (("save", save), ("offload", offload), ("ahead", ahead)):
            if isinstance(given, str):
                raise UserError(
                    f"{key}={given!r} is a text, which would be one name for each of "
                    f"its letters: write {key}=[{given!r}]"
                )
        return replace(
            self,
            save=tuple(sorted({*self.save, *save})),
            offload=tuple(sorted({*self.offload, *offload})),
            ahead=tuple(sorted({*self.ahead, *ahead})),
            chunks=self.chunks if chunks is None else chunks,
            segment_length=self.segment_length
            if segment_length is None
            else segment_length,
            unroll=self.unroll if unroll is None else unroll,
            slots=self.slots if slots is None else slots,
        )

    def only(self, names: Collection[str]) -> "Action":
        """The same of those of its names that are among these."""
        few = lambda listed: tuple(name for name in listed if name in names)
        return replace(
            self,
            save=few(self.save),
            offload=few(self.offload),
            ahead=few(self.ahead),
        )

    @property
    def on_host(self) -> bool:
        """Whether anything is kept in host memory."""
        return self.kind == "offload" or bool(self.offload)

    @property
    def inverts(self) -> bool:
        """Whether a layer's input is restored by the layer's inverse."""
        return self.kind == "invert"

    @property
    def recomputes_all(self) -> bool:
        """Whether a layer keeps nothing but its input."""
        return self.kind == "recompute" and not self.names and self.chunks == 1

    @property
    def layers_per_iteration(self) -> int:
        """How many layers an iteration of its loop runs, where there is one."""
        at_a_time = 1 if isinstance(self.unroll, bool) else self.unroll
        return self.segment_length * at_a_time

    @property
    def can_group(self) -> bool:
        """Whether layers of this action can form segments, as `segment_length` says."""
        plain = self.kind in ("save", "recompute") and self.chunks == 1
        return plain and not self.offload and not self.ahead

    @property
    def can_unroll(self) -> bool:
        """Whether unrolling layers of this action can gain anything."""
        alone = self.segment_length == 1 and not self.slots
        return not self.ahead and alone and self.chunks == 1

    def refused_by(self, facts: "Facts") -> str | None:
        """Why layers of a unit cannot take this action; None if they can.

        Args:
          facts: What is known of the unit.

        Returns:
          A part of a sentence that can follow "unit 'layer' cannot take INVERT:".
        """
        return next(_reasons(self, facts), None)

    @property
    def names(self) -> frozenset[str]:
        """Every name the action mentions."""
        return frozenset(self.save + self.offload + self.ahead)

    def __repr__(self) -> str:
        listed = [
            f"{key}={list(value)!r}"
            for key in ("save", "offload", "ahead")
            if (value := getattr(self, key))
        ]
        if self.chunks != 1:
            listed.append(f"chunks={self.chunks}")
        if self.segment_length != 1:
            listed.append(f"segment_length={self.segment_length}")
        if self.slots:
            listed.append(f"slots={self.slots}")
        if self.unroll:
            listed.append(f"unroll={self.unroll}")
        return self.kind.upper() + (f"({', '.join(listed)})" if listed else "")


def is_unroll(value: Any) -> bool:
    """Whether `Action.unroll` can be this; 1 would be equal to True."""
    return isinstance(value, bool) or (type(value) is int and value > 1)


SAVE = Action("save")
RECOMPUTE = Action("recompute")
OFFLOAD = Action("offload")
INVERT = Action("invert")


def read_action(data: dict[str, Any]) -> Action:
    """The action that `dataclasses.asdict` wrote; older plans have fewer fields.

    Raises:
      ValueError: A field is missing, or is not what it can be.
    """
    kind = typed(data, "kind", str)
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no action; there are {', '.join(KINDS)}")
    chunks = typed(data, "chunks", int)
    segment_length = data.get("segment_length", 1)
    for key, number in (("chunks", chunks), ("segment_length", segment_length)):
        if type(number) is not int or number < 1:
            raise ValueError(f"{key!r} is {number!r}")
    slots = data.get("slots", 0)
    if type(slots) is not int or slots < 0:
        raise ValueError(f"'slots' is {slots!r}")
    listed = {key: names(data, key) for key in ("save", "offload", "ahead")}
    unroll = data.get("unroll", False)
    if not is_unroll(unroll):
        raise ValueError(f"'unroll' is {unroll!r}")
    return Action(
        kind,
        chunks=chunks,
        segment_length=segment_length,
        unroll=unroll,
        slots=slots,
        **listed,
    )


@dataclass(frozen=True)
class Facts:
    """What is known of a unit, as far as it decides which actions its layers may take.

    Attributes:
      num_layers: How many layers it has.
      is_loop: Whether they are iterations of a loop, which can be unrolled.
      is_stack: Whether each layer hands its results to the next, and nowhere else.
      has_inverse: Whether its layers know their inverse.
      splits: The numbers of chunks it may be computed in, beside 1.
      names: By which actions may speak of its values; None where that is not known.
      listed: Those of the names that messages show.
      unrepeatable: Why one of its operations cannot be run twice; "" if all can.
      in_branch: Whether it runs in a branch of `lax.cond` or `lax.switch`.
      num_scans: How many scans around it keep what it keeps, for all their iterations.
    """

    num_layers: int
    is_loop: bool
    is_stack: bool
    has_inverse: bool
    splits: tuple[int, ...]
    names: Collection[str] | None
    listed: Collection[str]
    unrepeatable: str
    in_branch: bool
    num_scans: int


def _reasons(action: Action, facts: Facts) -> Iterator[str]:
    """Why a unit's layers cannot take an action; nothing where they can."""
    if action.inverts:
        if not facts.has_inverse:
            yield (
                "it has no inverse; give one with `inverse=` of `rr.block` or "
                "`rr.stack`, or write RECOMPUTE"
            )
        if not facts.is_stack:
            yield (
                "it is no stack, so nothing keeps a layer's output for its inverse to "
                "start from; write RECOMPUTE"
            )
        if action.chunks > 1:
            yield "its chunks have no inverse; leave `chunks` away"
    if action.chunks > 1 and not facts.splits:
        yield "it cannot be split; chunks are for `rr.block(..., split=...)`"
    if action.chunks > 1 and action.chunks not in (1, *facts.splits):
        yield (
            f"it can be computed in {', '.join(map(str, (1, *facts.splits)))} chunks, "
            f"not {action.chunks}"
        )
    if action.segment_length > 1:
        if not facts.is_stack:
            yield (
                "it is no stack, so its layers have no neighbours to share an input "
                "with; leave `segment_length` away"
            )
        if not action.can_group:
            yield (
                "`segment_length` goes with SAVE and RECOMPUTE, without `offload`, "
                "`ahead` and `chunks`"
            )
        if facts.unrepeatable:
            yield (
                "it cannot be run twice, as `segment_length` would: "
                f"{facts.unrepeatable}; leave `segment_length` away"
            )
    if action.slots:
        if not facts.is_loop:
            yield "it is no loop, of which few inputs could be kept; leave `slots` away"
        if action(slots=0) != RECOMPUTE:
            yield "`slots` goes with RECOMPUTE alone; write `RECOMPUTE(slots=...)`"
        if facts.unrepeatable:
            yield (
                f"it cannot be run twice, as `slots` would: {facts.unrepeatable}; "
                "leave `slots` away"
            )
    if action.unroll and not facts.is_loop:
        yield "it is no loop, so there is nothing to unroll; leave `unroll` away"
    if action.unroll is not True and action.unroll > facts.num_layers:
        yield f"it has only {facts.num_layers} layers; write `unroll=True` for them all"
    if action.layers_per_iteration > action.segment_length and action.on_host:
        yield (
            f"its `unroll={action.unroll}` layers send values that XLA puts together "
            "on the host; write `unroll=True`, or leave it away"
        )
    if action.ahead:
        if not facts.is_stack:
            yield (
                "it is no stack, so nothing of it can be recomputed ahead of anything "
                "else; leave `ahead` away"
            )
        if action.chunks > 1:
            yield "chunks recompute nothing ahead; leave `ahead` or `chunks` away"
    if facts.names is not None:
        yield from _misnamed(action, facts.names, facts.listed)
    if action.on_host and facts.in_branch:
        yield (
            "it runs in a branch of `lax.cond` or `lax.switch`, from which XLA hands "
            "on nothing in host memory; write SAVE or RECOMPUTE"
        )
    if action.on_host and facts.num_scans > 1:
        yield (
            f"it runs inside {facts.num_scans} scans, which would all keep in host "
            "memory what it sends there, and XLA manages only one; give RECOMPUTE to "
            "the unit around it, or write SAVE or RECOMPUTE"
        )


def _misnamed(
    action: Action, names: Collection[str], listed: Iterable[str]
) -> Iterator[str]:
    """What is wrong with the names of values that an action lists."""
    quoted = lambda found: ", ".join(map(repr, sorted(found)))
    if unknown := [name for name in action.names if name not in names]:
        shown = ", ".join(listed) or "none"
        yield f"it has no value named {quoted(unknown)}; it has: {shown}"
    if both := set(action.save) & set(action.offload):
        yield f"both `save` and `offload` list {quoted(both)}; list each name once"


def check_names(
    unit: str, action: Action, names: Collection[str], listed: Iterable[str]
) -> None:
    """Refuses names that a unit does not have, and those both saved and offloaded.

    Args:
      unit: What messages call it.
      action: Whose names.
      names: The unit's.
      listed: Those of them that messages show.

    Raises:
      UserError: The sentence.
    """
    for reason in _misnamed(action, names, listed):
        raise UserError(f"{unit} cannot take {action!r}: {reason}.")


def for_each(actions: Any, count: int) -> tuple[Action, ...]:
    """One action for each of so many layers, as people give them: one, or a list.

    Raises:
      UserError: Something in it is no action.
    """
    if isinstance(actions, Action):
        return (actions,) * count
    is_list = isinstance(actions, Iterable) and not isinstance(actions, str)
    given: tuple[Any, ...] = tuple(actions) if is_list else (actions,)
    for one in given:
        if not isinstance(one, Action):
            raise UserError(
                f"{one!r:.60} is no action: write rr.SAVE, rr.RECOMPUTE, rr.OFFLOAD or "
                "rr.INVERT, or a list of one for each layer"
            )
    return given


def check_actions(
    unit: str, actions: Sequence[Action], facts: Facts, *, shortened: bool = False
) -> None:
    """Refuses actions that a unit's layers cannot take.

    Args:
      unit: What messages call it.
      actions: One for each layer.
      facts: What is known of it.
      shortened: Whether there may be fewer actions than layers.

    Raises:
      UserError: A wrong number of actions, or one that is refused, with the reason.
    """
    if len(actions) != facts.num_layers and not shortened:
        raise UserError(
            f"{unit} has {facts.num_layers} layers and was given {len(actions)} "
            "actions; give one action, or one for each layer."
        )
    for action in dict.fromkeys(actions):
        if reason := action.refused_by(facts):
            raise UserError(f"{unit} cannot take {action!r}: {reason}.")
