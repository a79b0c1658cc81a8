"""Other ways to choose a plan, for the search to be measured against.

Each is written from its description and given every advantage: the same compiler says
what its proposals take, its compiles are shared between budgets, and of all that it
proposed the fastest that fits counts, even where the original would return another.
"""

from experiments.bench.rivals._arena import Arena as Arena
from experiments.bench.rivals._arena import Line as Line
from experiments.bench.rivals._arena import Rival as Rival
from experiments.bench.rivals._budget import MemoryBudget as MemoryBudget
from experiments.bench.rivals._greedy import Greedy as Greedy
from experiments.bench.rivals._ladder import Estimator as Estimator
from experiments.bench.rivals._splits import Splits as Splits
from experiments.bench.rivals._uniform import NoPlan as NoPlan
from experiments.bench.rivals._uniform import Segments as Segments
from experiments.bench.rivals._uniform import Uniform as Uniform

RIVALS: tuple[type[Rival], ...] = (
    NoPlan,
    Uniform,
    Splits,
    MemoryBudget,
    Estimator,
    Segments,
    Greedy,
)
"""All of them, in the order of the tables."""
