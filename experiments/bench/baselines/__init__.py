"""Other ways to choose a plan, for the search to be measured against.

Each is written from its description and given every advantage: the same compiler says
what its proposals take, its compiles are shared between budgets, and of all that it
proposed the fastest that fits counts, even where the original would return another.
"""

from experiments.bench.baselines._budget import MemoryBudget as MemoryBudget
from experiments.bench.baselines._budget import (
    UnrolledMemoryBudget as UnrolledMemoryBudget,
)
from experiments.bench.baselines._comparison import Baseline as Baseline
from experiments.bench.baselines._comparison import Comparison as Comparison
from experiments.bench.baselines._comparison import Line as Line
from experiments.bench.baselines._greedy import Greedy as Greedy
from experiments.bench.baselines._ladder import Estimator as Estimator
from experiments.bench.baselines._ladder import UnrolledEstimator as UnrolledEstimator
from experiments.bench.baselines._plain import PlainJax as PlainJax
from experiments.bench.baselines._plain import PlainSplits as PlainSplits
from experiments.bench.baselines._plain import RematPass as RematPass
from experiments.bench.baselines._splits import Splits as Splits
from experiments.bench.baselines._splits import UnrolledSplits as UnrolledSplits
from experiments.bench.baselines._uniform import NoPlan as NoPlan
from experiments.bench.baselines._uniform import Segments as Segments
from experiments.bench.baselines._uniform import Uniform as Uniform

BASELINES: tuple[type[Baseline], ...] = (
    NoPlan,
    Uniform,
    PlainJax,
    RematPass,
    Splits,
    UnrolledSplits,
    MemoryBudget,
    UnrolledMemoryBudget,
    Estimator,
    UnrolledEstimator,
    Segments,
    Greedy,
)
"""Those of the tables, in their order; there splits are of revremat's own layers."""
