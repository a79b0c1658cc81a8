"""Heuristics: every number that decides something in a search, with its reason."""

from dataclasses import dataclass, replace
from typing import Literal

Effort = Literal["quick", "normal", "exhaustive"]
"""How long a search goes on; the quicker ones are the beginning of the others."""


@dataclass(frozen=True)
class Heuristics:
    """What a search is steered by.

    Shares are of what the name's last word says; the measurements that chose them are
    in `docs/benchmarks`.

    Attributes:
      more_quick: Compiles beyond those without which nothing is known, of a quick
        search: plain unrolled loops, a second cost of what costs choose first, and
        that choice. One more candidate of each unit comes to that.
      more_on_paper: The same where sets of unrolled layers fit that are best on paper:
        those.
      least_kept_unrolled: Share of what plain autodiff keeps on paper that unrolled
        layers keep at least, where programs are timed: 0.73 to 0.89 were seen on a CPU,
        as XLA computes the rest again by itself.
      most_left_on_paper: Share of the budget that such a plan may leave: with more,
        a larger one is compiled, too.
      more_to_choose: Compiles beyond those, and one for each unit, that a quick search
        may take while nothing is chosen that fits: second costs of choices that mix
        candidates.
      more_unrolled: The same where loops can be unrolled: those whole, and three
        choices.
      more_each_unrolled: More of those for each such loop, and of a normal search for
        each but the first: two costs of what keeps all, one of the best set, and mostly
        one of another, since errors of several loops add up.
      more_normal: The same of a normal search: most of a gain is found by then, and on
        two cores a GPT of 6 layers takes about fifteen times one compile.
      more_timed: The same of a normal search that runs what it compiles. What runs
        needs its kernels, and takes longer; so it takes at most twice as long as one
        that estimates (benchmark `timed`).
      more_timed_unrolled: More of those where loops can be unrolled: costs of unrolled
        layers, and the first choice by them.
      most_candidates: Candidates of a unit that get a cost at first. Twelve found the
        best of 256 sets within 1 % on three kinds of layers (benchmark `regret`).
      fewest_candidates: Candidates of a unit with which a search begins: recompute all,
        save all, and one between. So ten compiles give a plan. One more between follows
        them: without it quick plans of a GPT of 6 layers took 3.3 % longer.
      most_whole: Layers up to which a layer's cost is told by programs that have all of
        them. Where a stopwatch tells times it takes more: what a shortened program
        keeps may still lie in a cache.
      most_brief_tightenings: Choices compiled while not all costs are known.
      most_tightenings: Choices compiled until one fits; errors shrink by half and more
        each time.
      far_off: Compiled bytes over expected ones from where a cost is not believed.
      step_below: Share of the budget by which a limit goes down beyond the error that
        was seen, so that the same choice does not come again.
      num_runners_up: Other assignments compiled beside the best. A third gained
        nothing.
      near_bytes: Expected bytes over budget up to which a program may still fit, where
        it is the smallest, of one action, or the best without its loops.
      near_time: Expected time over the best one up to which a runner-up may still win:
        whole programs differ from their layers' sum by about 2 %.
      near_timed: Measured time over the fastest's up to which a program is timed once
        more at the end: while others use the memory, a step may take a third longer.
      num_uniform: Plans of one action for all layers that are measured before any
        choice by costs. Estimates of layers add up to programs; measured times do so
        less.
      num_drops: Sets by arithmetic alone that fit, of each unit of such a search.
      num_choices: Compiles that such a search leaves, of those it is allowed, when it
        offers sets unrolled: the best of them with its last layers kept, and a choice
        by costs.
      most_kept_last: Programs that such a search measures to find how many of the last
        layers may keep everything.
      timing_error: Share of a step by which times that were measured on a machine are
        off: a change that promises less cannot be told from none.
      negligible_budget: Share of the budget that is not worth a compile.
      least_gain_local: Share of a step that a local change has to promise.
      least_gain_column: Share of a step that new candidates have to promise, for which
        three compiles and more are spent.
      apart_budget: Share of the budget between an assignment that was too large and the
        next.
      most_local_steps: Compiles of one local search.
      least_gain_settled: Share of a step that a search has to be able to gain on plain
        unrolled loops, where those fit; with less it ends. What XLA's remat pass is
        given has to gain as much.
      num_remat_passes: Programs without loops that are measured with XLA's remat pass.
      most_remat_limits: Limits of that pass, for each of them.
      most_over_remat_pass: Bytes of an unrolled program over budget up to which that
        pass comes before any choice by costs: a GPT of 24 layers fits into two thirds
        for 4 % of a step.
      nearly_budget: Bytes over budget up to which peeled layers may make an assignment
        fit.
      num_peeled: Actions tried for a first or last layer, of all units together.
      most_trimmed: Peeled plans compiled whole for one unit.
      most_column_rounds: Rounds of column generation by nearest neighbours, and as many
        by what is chosen; the fourth rarely found any.
      barrier_saves: Share of all bytes that a gradient barrier has to save: it takes
        time, too.
      most_put_off: Plans over several devices whose gradients are put off for once: the
        best one may be too large so, where the next one still fits.
      most_unrolled_layers: Layers of a loop beyond which it stays a loop: compiling
        takes too long.
      most_unrolled_operations: Operations of those layers, likewise.
      most_operations_timed: The same for a stopwatch, which needs kernels, of every
        set: for 13,312 operations a CPU's compiler took 226 s.
      unrolled_by: Layers of an iteration, of loops that stay loops: each number is
        tried where the one before it gained. A recurrence of 1024 steps takes 663 ms
        with one step to an iteration, 324 with 4 and 263 with 16.
      short_layer_us: Time of a layer up to which that is tried of loops that can be
        unrolled whole: an iteration itself takes some tens of microseconds.
      least_gain_inside: Share of a step that several layers to an iteration of loops
        inside have to gain for these to be decided before what is around them.
      least_layers_for_slots: Layers of a loop from where binomial schedules are tried:
        with fewer, segments keep about as little.
      most_numbers_of_slots: Of those schedules that are compiled for one budget. The
        first compile tells how many slots fit, the second one most often fits.
      off_difference: How far off costs may be, as a share of a difference.
      off_whole: How far off costs may be, as a share of the whole.
      most_schedules: Schedules of segments that are compiled for one budget.
      most_failures: Schedules that were no better, one after the other, to stop after.
      most_changes: Units in which every other schedule differs from the best.
      most_over_budget: Share of the budget by which every third schedule may be over
        it, at first: the model may expect too much.
      isolate_operations: Operations of a program whose units are worth compiling
        without the rest of it.
      isolate_part: Part of a program up to which a unit is a small part of it.
      isolate_fused_time: Share of a step that layers may lose by not being fused with
        what is around them.
    """

    more_quick: int = 3
    more_on_paper: int = 1
    least_kept_unrolled: float = 0.0
    most_left_on_paper: float = 0.1
    more_to_choose: int = 2
    more_unrolled: int = 4
    more_each_unrolled: int = 4
    more_normal: int = 18
    more_timed: int = 6
    more_timed_unrolled: int = 2
    most_candidates: int = 12
    fewest_candidates: int = 3
    most_whole: int = 8
    most_brief_tightenings: int = 2
    most_tightenings: int = 5
    far_off: float = 1.1
    step_below: float = 1e-4
    num_runners_up: int = 2
    near_bytes: float = 1.02
    near_time: float = 1.02
    near_timed: float = 1.4
    num_uniform: int = 0
    num_drops: int = 2
    num_choices: int = 2
    most_kept_last: int = 2
    timing_error: float = 0.02
    negligible_budget: float = 0.003
    least_gain_local: float = 1e-3
    least_gain_column: float = 0.002
    least_gain_settled: float = 0.005
    num_remat_passes: int = 2
    most_remat_limits: int = 3
    apart_budget: float = 1e-4
    most_local_steps: int = 8
    most_over_remat_pass: float = 1.5
    nearly_budget: float = 1.25
    num_peeled: int = 6
    most_trimmed: int = 4
    most_column_rounds: int = 4
    barrier_saves: float = 0.05
    most_put_off: int = 2
    most_unrolled_layers: int = 100
    most_unrolled_operations: int = 15_000
    most_operations_timed: int = 6_000
    unrolled_by: tuple[int, ...] = (4, 16)
    short_layer_us: float = 500.0
    least_gain_inside: float = 0.05
    least_layers_for_slots: int = 64
    most_numbers_of_slots: int = 3
    off_difference: float = 0.25
    off_whole: float = 0.02
    most_schedules: int = 28
    most_failures: int = 12
    most_changes: int = 2
    most_over_budget: float = 0.2
    isolate_operations: int = 1000
    isolate_part: float = 1 / 2
    isolate_fused_time: float = 1 / 200

    def for_measured_times(self) -> "Heuristics":
        """The same where a stopwatch tells times, which are off by some percent."""
        names = "least_gain_local", "least_gain_column", "least_gain_settled"
        gains = {name: max(getattr(self, name), self.timing_error) for name in names}
        how = {"num_uniform": 3, "most_whole": 16, "least_kept_unrolled": 0.7}
        few = min(self.most_unrolled_operations, self.most_operations_timed)
        return replace(self, most_unrolled_operations=few, **how, **gains)

    @property
    def is_measured(self) -> bool:
        """Whether a stopwatch tells times."""
        return self.num_uniform > 0

    def most_compiles(
        self,
        effort: Effort,
        num_needed: int,
        num_another: int = 0,
        *,
        runs: bool = False,
        num_unrolled: int = 0,
    ) -> int | None:
        """How many programs a search may measure; None for as many as it takes.

        Args:
          effort: Of the search.
          num_needed: Programs without which it knows of no plan.
          num_another: Units of which one more candidate is compared.
          runs: Whether it runs what it compiles.
          num_unrolled: Loops that can be unrolled.
        """
        more = self._more(num_another, runs, num_unrolled).get(effort)
        return None if more is None else num_needed + more

    def most_to_choose(
        self,
        num_needed: int,
        num_another: int,
        *,
        runs: bool = False,
        num_unrolled: int = 0,
    ) -> int:
        """How many a quick search may measure while nothing is chosen that fits.

        Args:
          num_needed: As `most_compiles` takes it.
          num_another: The same.
          runs: The same.
          num_unrolled: The same.
        """
        more = self._more(num_another, runs, num_unrolled)
        longer = more["quick"] + num_another + self.more_to_choose
        if num_unrolled:
            unrolled = self.more_unrolled + self.more_each_unrolled * num_unrolled
            longer = max(longer, unrolled)
        return num_needed + min(longer, more["normal"])

    def _more(
        self, num_another: int, runs: bool, num_unrolled: int
    ) -> dict[Effort, int]:
        """Compiles beyond the needed ones, of the efforts that have a limit."""
        on_paper = self.more_on_paper if num_unrolled and not runs else 0
        quick = self.more_quick + on_paper + num_another
        others = self.more_each_unrolled * max(0, num_unrolled - 1)
        timed = self.more_timed + (num_unrolled > 0) * self.more_timed_unrolled
        normal = max(quick, timed if runs else self.more_normal + others)
        return {"quick": quick, "normal": normal}
