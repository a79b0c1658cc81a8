"""MaxText's estimator: one named tensor at a time leaves the device.

From its description: a layer's tensors stand in a fixed order, by contracting dimension
and then output width, the largest first. All start on the device. On the ladder of
rematerialization one after the other is recomputed instead; on the ladder of offloading
one after the other goes to the host, and once all are there one after the other is
recomputed. The first step that compiles within the budget is its answer; here the
faster of the two ladders' answers counts.

What differs: it knows eleven names of a transformer's tensors. Here those are found by
their part in the layer, and a program that is no transformer has the results of its
products with weights.
"""

from dataclasses import dataclass

from experiments.bench.baselines._comparison import Actions, Baseline, Comparison, Line
from revremat import RECOMPUTE, Unit
from revremat.policies import is_product, roles


@dataclass(frozen=True)
class Tensor:
    """A value that is moved as a whole, in all layers of its unit.

    Attributes:
      unit: Whose.
      name: Its name there.
      contracting: The contracting dimension of the product that makes it.
      width: Of one element along the stream.
    """

    unit: str
    name: str
    contracting: int
    width: int


class Estimator(Baseline):
    """MaxText's order, on both of its ladders.

    Args:
      comparison: The program.
      most: Compiles for a budget and a ladder.
    """

    name = "estimator"

    def __init__(self, comparison: Comparison, most: int = 3):
        super().__init__(comparison)
        self.most = most
        found = [t for u in comparison.units for t in tensors(u)]
        self.tensors = sorted(found, key=lambda t: (-t.contracting, -t.width))
        self.lines = [
            Line(self.rematerialize, self.compile, f"{self.name}, remat"),
            Line(self.offload, self.compile, f"{self.name}, offload"),
        ]

    def ask(self, budget_bytes: int) -> None:
        if self.is_idle:
            return
        for line in self.lines:
            line.ask(budget_bytes, self.most)

    def rematerialize(self, position: float) -> Actions:
        """So many of the tensors still on the device, the others recomputed."""
        gone = round((1 - position) * len(self.tensors))
        return self.actions(remat=gone, offload=0)

    def offload(self, position: float) -> Actions:
        """Two times around: to the host, then recomputed."""
        number = len(self.tensors)
        steps = round((1 - position) * 2 * number)
        away = min(steps, number)
        return self.actions(remat=steps - away, offload=away - (steps - away))

    def actions(self, remat: int, offload: int) -> Actions:
        """The first tensors recomputed, the next on the host, the others saved."""
        host = self.tensors[remat : remat + offload]
        device = self.tensors[remat + offload :]
        found = {}
        for u in self.comparison.units:
            action = RECOMPUTE(
                save=[t.name for t in device if t.unit == u.name],
                offload=[t.name for t in host if t.unit == u.name],
            )
            found[u.name] = (action,) * u.num_layers
        return found


class UnrolledEstimator(Estimator):
    """The same with the layers of loops unrolled."""

    name = "estimator, unrolled"
    unroll = True


def tensors(unit: Unit) -> list[Tensor]:
    """The tensors of a unit that it knows."""
    parts = roles(unit)
    names = [*parts.qkv, *parts.context, *parts.out, *parts.mlp_in, *parts.mlp_out]
    if not names:
        names = [
            unit.values[k].name
            for op in unit.operations
            if is_product(op) and not op.batch_dims and not op.effectful
            for k in op.outputs
        ]
    maker = {k: op for op in unit.operations for k in op.outputs}
    found = []
    for name in dict.fromkeys(name for name in names if name):
        k = unit.position[name]
        shape = unit.values[k].shape
        while k in maker and not is_product(maker[k]):
            made = [i for i in maker[k].inputs if i in maker]
            if not made:
                break
            k = made[0]  # what a view shows was made by a product
        op, size = maker.get(k), _size(unit.values[k].shape)
        contracting = op.num_flops // (2 * size) if op and size else 0
        # A layer's activations are batch, positions, and then what has a width.
        width = _size(shape[2:]) if len(shape) > 2 else _size(shape[-1:])
        found.append(Tensor(unit.name, name, contracting, width))
    return found


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
