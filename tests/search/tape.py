"""Searches on tape: what they asked, what they were told, and what they answered.

    python -m tests.search.tape [CASE ...]

measures what is missing, and writes `recorded/CASE.json.gz` (the units of the program
and every measurement that a search has seen, as far as it reads one) and
`asked/CASE.json` (for each search, what it asked in order and what it answered).
Actions, not labels, say what is asked. Replaying takes no JAX program and no compiler.
"""

import dataclasses
import gzip
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import revremat as rr
from revremat import _search
from revremat._action import Action
from revremat._graph import Graph, Operation, Unit, Value
from revremat._measurement import Buffer, Measurement, Memory, Time
from revremat._search import (
    BASELINE,
    Asking,
    ProbeKey,
    ProgramKey,
    Request,
    RequestOracle,
    State,
    answer,
    decide,
)
from revremat._search._probe_programs import small_units
from revremat._search._start import start
from tests.search.model import told_of
from tests.search.programs import CASES, Case

HERE = Path(__file__).parent


# ---- What is written -----------------------------------------------------------------


def action_text(action: Action) -> str:
    """One action; equal texts, equal actions."""
    return repr(action).replace("'", "").replace(" ", "")


def runs_text(actions: Sequence[Action]) -> str:
    """Actions of a unit's layers, in running order."""
    runs = [(key, len(list(run))) for key, run in groupby(actions)]
    return " + ".join(f"{n} {action_text(action)}" for action, n in runs)


def plan_text(
    actions: Mapping[str, Sequence[Action]],
    gradient_barrier: bool,
    remat_pass_percent: int | None,
    puts_gradients_off: bool,
) -> str:
    """A whole program."""
    text = "; ".join(f"{unit}: {runs_text(few)}" for unit, few in actions.items())
    barrier = " | gradient barrier" if gradient_barrier else ""
    barrier += " | put off" if puts_gradients_off else ""
    percent = remat_pass_percent
    return text + barrier + (f" | remat pass {percent}" if percent else "")


def probe_text(
    unit: str,
    actions: Sequence[Action],
    others: Sequence[str],
    gradient_barrier: bool,
    is_alone: bool,
) -> str:
    """A shortened program: a unit's first layers, others recomputing everything."""
    beside = "alone" if is_alone else f"beside {','.join(sorted(others)) or 'nothing'}"
    order = " | gradient barrier" if gradient_barrier else ""
    return f"first of {unit}: {runs_text(actions)} | {beside}{order}"


def told(m: Measurement) -> list[Any]:
    """What a search reads of a measurement."""
    memory = m.memory
    sizes = (
        memory.argument_bytes,
        memory.output_bytes,
        memory.alias_bytes,
        memory.temp_bytes,
        memory.host_bytes,
    )
    parts = {"|".join(key): n for key, n in memory.by("phase", "module").items()}
    return [*sizes, m.time.step_us, parts]


def measurement(data: Sequence[Any]) -> Measurement:
    """A measurement that says the same to a search."""
    *sizes, step_us, parts = data
    buffers = []
    for key, size in parts.items():
        phase, module = key.split("|", 1)
        scope = "" if module == "(unnamed)" else module
        buffers.append(Buffer(size, (), "float32", phase, scope))
    memory = Memory(*sizes, buffers=tuple(buffers))
    time = Time(step_us=step_us, compute_us=step_us)
    return Measurement("", "", "", 1, 1, 0, memory, time)


def graph_data(graph: Graph) -> dict[str, Any]:
    return dataclasses.asdict(dataclasses.replace(graph, fixed_units=()))


def graph_of(data: dict[str, Any]) -> Graph:
    tuples = lambda d: {k: tuple(v) if isinstance(v, list) else v for k, v in d.items()}
    units = []
    for unit in data["units"]:
        values = tuple(Value(**tuples(v)) for v in unit["values"])
        operations = tuple(Operation(**tuples(op)) for op in unit["operations"])
        rest = {**tuples(unit), "values": values, "operations": operations}
        units.append(Unit(**rest))
    return Graph(tuple(units), data["fingerprint"], data["jax_version"])


@dataclasses.dataclass
class Tape:
    """Everything that is known of one program.

    Attributes:
      graph: Its units.
      small: Units that are small parts of the program.
      measured: From what was asked to what was told.
    """

    graph: Graph
    small: list[str]
    measured: dict[str, list[Any]]

    def save(self, name: str) -> None:
        data = {
            "graph": graph_data(self.graph),
            "small": self.small,
            "measured": self.measured,
        }
        text = json.dumps(data, indent=0, sort_keys=True)
        path = HERE / "recorded" / f"{name}.json.gz"
        path.write_bytes(gzip.compress(text.encode(), mtime=0))

    @staticmethod
    def load(name: str) -> "Tape":
        path = HERE / "recorded" / f"{name}.json.gz"
        data = json.loads(gzip.decompress(path.read_bytes()))
        data.pop("share", None)  # of older tapes, all on one device
        return Tape(**{**data, "graph": graph_of(data["graph"])})


def answer_data(fit: rr.Fit) -> dict[str, Any]:
    """What a search answers."""
    return {
        "plan": plan_text(
            fit.plan.actions,
            fit.plan.gradient_barrier,
            fit.plan.remat_pass_percent,
            fit.plan.puts_gradients_off,
        ),
        "fits": fit.plan.fits,
        "bytes": fit.measurement.memory.total_bytes,
        "step_us": fit.measurement.time.step_us,
        "predicted_bytes": fit.plan.predicted_bytes,
        "held_by": fit.plan.held_by,
        "bound_us": fit.bound_us,
        "greedy_us": fit.greedy_us,
        "filled": fit.filled,
        "num_compiles": fit.num_compiles,
        "is_cut_short": fit.is_cut_short,
        "left": list(fit.left),
        "not_sent": fit.not_sent,
    }


# ---- How a search is put on it -------------------------------------------------------


def text_of(key: ProbeKey | ProgramKey, graph: Graph) -> str:
    """What is asked, by actions alone."""
    if isinstance(key, ProbeKey):
        others, barrier = key.recomputed, key.gradient_barrier
        return probe_text(key.unit, key.actions, others, barrier, key.is_isolated)
    if key.actions is None:
        return "baseline"
    return plan_text(
        dict(key.actions),
        key.gradient_barrier,
        key.remat_pass_percent,
        key.puts_gradients_off,
    )


@dataclasses.dataclass
class TapeOracle:
    """Says what is on a tape; what is not is asked of another oracle, if there is one.

    Attributes:
      tape: The measurements.
      other: Measures what is missing.
      asked: Everything, in order.
    """

    tape: Tape
    other: RequestOracle | None = None
    asked: list[str] = dataclasses.field(default_factory=list)

    def measure(self, requests: Iterable[Request]) -> list[Measurement]:
        requests = list(requests)
        texts = [text_of(r.key, self.tape.graph) for r in requests]
        known = self.tape.measured
        missing = [r for r, t in zip(requests, texts, strict=True) if t not in known]
        assert self.other or not missing, f"not on tape: {missing[0].key}"
        if self.other and missing:
            found = self.other.measure(missing)
            for request, one in zip(missing, found, strict=True):
                assert isinstance(one, Measurement)
                known[text_of(request.key, self.tape.graph)] = told(one)
        self.asked += texts
        return [measurement(known[text]) for text in texts]


@dataclasses.dataclass(frozen=True)
class Model:
    """Makes measurements up."""

    graph: Graph
    on_host: bool

    def measure(self, requests: Iterable[Request]) -> list[Measurement]:
        texts = [text_of(request.key, self.graph) for request in requests]
        return [measurement(told_of(t, self.graph, self.on_host)) for t in texts]


def state_of(case: Case, tape: Tape, most: int | None = None, **fixed: Any) -> State:
    """The start of a search of a case."""
    return start(
        tape.graph,
        rr.target(case.target),
        small_units=frozenset(tape.small),
        repeats_loss=case.repeats_loss,
        most_compiles=most,
        **fixed,
    )


def budgets_of(case: Case, tape: Tape) -> list[int]:
    """Bytes."""
    plain = measurement(tape.measured["baseline"]).memory.total_bytes
    return [int(share * plain) for share in case.shares]


def run(
    case: Case, tape: Tape, other: RequestOracle | None = None
) -> list[dict[str, Any]]:
    """All searches of a case: each budget alone, all with one, and limited ones."""
    budgets = budgets_of(case, tape)
    every = [([b], None) for b in budgets] + [(budgets, None)]
    every += [([budgets[1]], most) for most in case.limits]
    every += [([budgets[2]], case.limits[0])]
    found = []
    for few, most in every:
        oracle, answers = TapeOracle(tape, other), []
        state, ask = state_of(case, tape, most), Asking(oracle)
        for budget in few:
            state = decide(state.within(budget), ask)
            answers.append(answer_data(answer(state, lambda: None)))
        found.append(
            {"budgets": few, "most": most, "asked": oracle.asked, "answers": answers}
        )
    return found


def record(case: Case) -> None:
    """Measures a case's programs, and writes what came of it."""
    problem, target = case.make(), rr.target(case.target)
    compiler = _search.compiler(problem, target)
    graph, heuristics = compiler.graph, _search.Heuristics()
    if case.alone:
        heuristics = _search.Heuristics(isolate_operations=0, isolate_part=2)
    small = small_units(compiler.traced, graph, heuristics)
    ours = {unit.name for unit in graph.units if not unit.enclosing}
    tape = Tape(graph, sorted(small & ours), {})
    path = HERE / "recorded" / f"{case.name}.json.gz"
    if path.exists() and Tape.load(case.name).graph.units == graph.units:
        tape.measured.update(Tape.load(case.name).measured)
    on_host = target.platform != "cpu"
    other = Model(graph, on_host) if case.is_modelled else compiler
    TapeOracle(tape, other).measure([Request(BASELINE, "baseline")])
    found = run(case, tape, other)
    tape.save(case.name)
    text = json.dumps(found, indent=1)
    (HERE / "asked" / f"{case.name}.json").write_text(text + "\n")


def replay(case: Case) -> list[dict[str, Any]]:
    """The same searches on the tape alone."""
    return run(case, Tape.load(case.name))


def expected(case: Case) -> list[dict[str, Any]]:
    """What they asked and answered when they were recorded."""
    return json.loads((HERE / "asked" / f"{case.name}.json").read_text())


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        record(CASES[name])
        number = len(Tape.load(name).measured)
        print(f"{name}: {number} programs", flush=True)
