"""Peeled layers: what a first or a last layer costs outside of its loop.

The compiler fuses and overlaps it with what is next to it: on GPT that saves a third of
the layer's time. So the first and the last layer have costs of their own, beside the
run that they stand next to.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from revremat._action import Action
from revremat._graph import Unit
from revremat._search._probes import DEPTHS, Probe, is_loop
from revremat.policies import Candidate, LayerCost, Runs


def can_peel(unit: Unit, most_whole: int = DEPTHS[1]) -> bool:
    """Whether a first and a last layer can have costs of their own.

    Args:
      unit: Whose.
      most_whole: Layers up to which costs come from programs that have all of them.
    """
    return is_loop(unit) and unit.skippable and unit.num_layers > most_whole


def peeled_cut(action: Action, beside: Action, last: bool) -> tuple[Action, ...]:
    """A shortened program whose first or last layer differs from the run beside it."""
    run = (beside,) * (DEPTHS[1] - 1)
    return (*run, action) if last else (action, *run)


def neighbour(runs: Runs, last: bool) -> tuple[str, bool]:
    """What the first or the last layer stands beside, and whether it stands alone.

    >>> neighbour([("save", 1), ("recompute all", 22), ("save", 1)], last=False)
    ('recompute all', True)
    >>> neighbour([("recompute all", 24)], last=True)
    ('recompute all', False)
    """
    ordered = runs[::-1] if last else runs
    stands_alone = len(runs) > 1 and ordered[0][1] == 1
    return ordered[1 if stands_alone else 0][0], stands_alone


@dataclass(frozen=True)
class PeeledCosts:
    """The costs of one unit's peeled layers, as far as they are known.

    Attributes:
      unit: The unit.
      candidates: Its candidates, by name.
      probe: From the first layers' actions to what was measured; None for what was not.
      in_loop: The same by the name of a candidate that all layers of a loop take.
      most_whole: As `can_peel` takes it.
    """

    unit: Unit
    candidates: Mapping[str, Candidate]
    probe: Callable[[tuple[Action, ...]], Probe | None]
    in_loop: Callable[[str], Probe | None]
    most_whole: int = DEPTHS[1]

    def least_recomputed(self, beside: str, number: int) -> list[str]:
        """Candidates worth a cost as a peeled layer: those that recompute least.

        Args:
          beside: The candidate of the run beside it, which is no news.
          number: How many, at most.
        """
        options = []
        for name, candidate in self.candidates.items():
            kept, action = self.unit.kept(candidate.action), candidate.action
            differs = action.unroll or action.segment_length > 1
            if name != beside and not (differs or kept.ahead or action.on_host):
                options.append((kept.recompute_flops, kept.device_bytes, name))
        return [name for *_, name in sorted(options)[:number]]

    def cost(self, name: str, beside: str, last: bool) -> LayerCost | None:
        """What a first or last layer costs more than its neighbours in a loop.

        Returns:
          Differences: kept bytes, host bytes and time; no base. None if not known.
        """
        if not can_peel(self.unit, self.most_whole) or name == beside:
            return None
        action, run = self.candidates[name].action, self.candidates[beside].action
        probe, many = self.probe(peeled_cut(action, run, last)), self.in_loop(beside)
        if probe is None or many is None:
            return None
        return LayerCost(
            name,
            probe.bytes - many.bytes,
            0.0,
            probe.host_bytes - many.host_bytes,
            probe.time_us - many.time_us,
        )

    def known(self, beside: str, last: bool) -> list[LayerCost]:
        """Those costs of the first or the last layer that are known."""
        found = (self.cost(name, beside, last) for name in self.candidates)
        return [cost for cost in found if cost is not None]

    def split(self, runs: Runs) -> tuple[Runs, Runs, Runs]:
        """A first layer with a cost outside of the loop, the loop, and a last one."""
        first, loop, last = (), tuple(runs), ()
        if self._stands_alone(runs, last=False):
            first, loop = loop[:1], loop[1:]
        if self._stands_alone(runs, last=True):
            loop, last = loop[:-1], loop[-1:]
        return first, loop, last

    def _stands_alone(self, runs: Runs, last: bool) -> bool:
        beside, stands_alone = neighbour(runs, last)
        name = runs[-1 if last else 0][0]
        return stands_alone and self.cost(name, beside, last) is not None

    def more_us(self, runs: Runs, time_us: Callable[[str], float]) -> Iterator[float]:
        """What the first and the last layer take more than their costs in loops.

        Args:
          runs: Layers of the unit.
          time_us: Of a candidate's layer in a loop.
        """
        for last in (False, True):
            if self._stands_alone(runs, last):
                name, (beside, _) = runs[-1 if last else 0][0], neighbour(runs, last)
                added = self.cost(name, beside, last)
                assert added is not None
                yield time_us(beside) + added.time_us - time_us(name)
