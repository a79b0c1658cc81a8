"""Searches on tape: what they asked, what they were told, and what they answered.

    python -m tests.search.tape [CASE ...]

measures what is missing, and writes `recorded/CASE.json.gz` (the units of the program
and every measurement that a search has seen, as far as it reads one) and
`asked/CASE.json` (for each search, what it asked in order and what it answered).
Actions, not labels, say what is asked. Replaying takes no JAX program and no compiler.
"""

import contextlib
import dataclasses
import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import revremat as rr
from revremat import _choose, _compiled, _cut
from revremat._choose import Search
from revremat._graph import Graph, Operation, Unit, Value
from revremat._measurement import Buffer, Measurement, Memory, Time
from revremat._plan import Action
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


def plan_text(actions: Mapping[str, Sequence[Action]], in_order: bool) -> str:
    """A whole program."""
    text = "; ".join(f"{unit}: {runs_text(few)}" for unit, few in actions.items())
    return text + (" | in order" if in_order else "")


def probe_text(
    unit: str,
    actions: Sequence[Action],
    others: Sequence[str],
    in_order: bool,
    is_alone: bool,
) -> str:
    """A shortened program: a unit's first layers, others rebuilding everything."""
    beside = "alone" if is_alone else f"beside {','.join(sorted(others)) or 'nothing'}"
    order = " | in order" if in_order else ""
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
    return dataclasses.asdict(dataclasses.replace(graph, choices=()))


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
      share: Part of an activation that lies on one device.
      small: Units that are small parts of the program.
      measured: From what was asked to what was told.
    """

    graph: Graph
    share: float
    small: list[str]
    measured: dict[str, list[Any]]

    def save(self, name: str) -> None:
        data = {
            "graph": graph_data(self.graph),
            "share": self.share,
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
        return Tape(**{**data, "graph": graph_of(data["graph"])})


def answer_data(fit: rr.Fit) -> dict[str, Any]:
    """What a search answers."""
    return {
        "plan": plan_text(fit.plan.actions, fit.plan.in_order),
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


class Taped(Search):
    """A search whose compiles are on a tape; what is missing may be measured."""

    tape: Tape
    asked: list[str]
    may_compile = False
    model = None

    def ask(self, steps):
        missing = [s for s in steps if s[1].name not in self.tape.measured]
        if missing:
            assert self.may_compile, f"not on tape: {missing[0][1].name}"
            unique = list({step.name: (n, step) for n, step in missing}.values())
            if self.model is not None:
                for _, step in unique:
                    self.tape.measured[step.name] = self.model(step.name)
            found = [] if self.model is not None else super().ask(unique)
            unique = unique[: len(found)]
            self.done -= len(unique)
            for (_, step), m in zip(unique, found, strict=True):
                self.tape.measured[step.name] = told(m)
        self.done += len(steps)
        self.asked += [step.name for _, step in steps]
        return [measurement(self.tape.measured[step.name]) for _, step in steps]


@contextlib.contextmanager
def keyed(problem: rr.Problem | None) -> Iterator[None]:
    """While it lasts, what is asked is called by its key."""
    cuts = _cut.Cuts
    real = cuts._isolated, cuts._shortened, _compiled.step_of, _compiled.apply

    def probe(self, name, actions, is_alone):
        others = [u.name for u in (*self.around, *self.units) if u.name != name]
        key = probe_text(name, actions, others, self.in_order, is_alone)
        if problem is None:
            return SimpleNamespace(name=key)
        return dataclasses.replace(real[not is_alone](self, name, actions), name=key)

    def step_of(problem_, loss):
        plan = getattr(loss, "plan", None)
        key = "as written" if plan is None else plan_text(plan.actions, plan.in_order)
        if problem is None:
            return SimpleNamespace(name=key)
        return dataclasses.replace(real[2](problem_, loss), name=key)

    def noted(self, loss):
        self._used = True
        return loss

    def applied(loss, plan):
        made = real[3](loss, plan) if problem else SimpleNamespace()
        made.plan = plan
        return made

    with (
        mock.patch.object(
            _cut.Cuts, "_isolated", lambda self, n, a: probe(self, n, a, True)
        ),
        mock.patch.object(
            _cut.Cuts, "_shortened", lambda self, n, a: probe(self, n, a, False)
        ),
        mock.patch.object(_compiled, "step_of", step_of),
        mock.patch.object(_compiled, "apply", applied),
        mock.patch.object(_compiled.Compiled, "_noted", noted),
    ):
        yield


@contextlib.contextmanager
def without_program(tape: Tape) -> Iterator[None]:
    """While it lasts, whatever is traced is the tape's program."""
    traced = SimpleNamespace(fingerprint=tape.graph.fingerprint)
    is_small = lambda traced, unit, most: unit.name in tape.small
    with (
        mock.patch.object(_compiled, "trace", return_value=tape.graph),
        mock.patch.object(_choose, "trace_loss", return_value=traced),
        mock.patch.object(_choose, "apply", lambda loss, plan: loss),
        mock.patch.object(_cut, "_share", return_value=tape.share),
        mock.patch.object(_cut, "is_small_part", is_small),
        keyed(None),
    ):
        yield


def search_of(tape: Tape, problem: Any, target: str, may_compile: bool, most: Any):
    kind = type("On", (Taped,), {"tape": tape, "asked": [], "may_compile": may_compile})
    return kind, lambda: kind(problem, rr.target(target), most_compiles=most)


def run(case: Case, tape: Tape, problem: Any, may_compile: bool) -> list[dict]:
    """All searches of a case: each budget alone, all with one, and limited ones."""
    plain = sum(tape.measured["as written"][:2]) - tape.measured["as written"][2]
    plain += tape.measured["as written"][3]
    budgets = [int(share * plain) for share in case.shares]
    every = [([b], None) for b in budgets] + [(budgets, None)]
    every += [([budgets[1]], most) for most in case.limits]
    every += [([budgets[2]], case.limits[0])]
    found = []
    for few, most in every:
        kind, make = search_of(tape, problem, case.target, may_compile, most)
        search = make()
        answers = [answer_data(search.fit(budget)) for budget in few]
        found.append(
            {"budgets": few, "most": most, "asked": kind.asked, "answers": answers}
        )
    return found


def record_model(case: Case) -> None:
    """Makes measurements up, and writes what came of it."""
    problem = case.make()
    graph = rr.trace(problem.loss, *problem.specs)
    ours = [u.name for u in graph.units if u.inside == ""]
    on_host = not case.target.startswith("cpu")
    Taped.model = staticmethod(lambda key: told_of(key, graph, on_host))
    measured = {"as written": Taped.model("as written")}
    tape = Tape(graph, 1.0, ours if case.alone else [], measured)
    with without_program(tape):
        dummy = SimpleNamespace(loss=None, specs=((),), step=problem.step)
        found = run(case, tape, dummy, True)
    tape.save(case.name)
    text = json.dumps(found, indent=1)
    (HERE / "asked" / f"{case.name}.json").write_text(text + "\n")


def record(case: Case) -> None:
    """Compiles a case's programs, and writes what came of it."""
    problem = case.make()
    loss = _cut.trace_loss(problem.loss, problem.specs)
    graph = rr.trace(problem.loss, *problem.specs)
    ours = [u for u in graph.units if u.inside == ""]
    large = 0 if case.alone else _cut._LARGE
    part = 2 if case.alone else _cut._SMALL_PART
    with (
        mock.patch.object(_cut, "_LARGE", large),
        mock.patch.object(_cut, "_SMALL_PART", part),
    ):
        small = [u.name for u in ours if _cut.is_small_part(loss, u, _cut.DEPTHS[-1])]
        target = rr.target(case.target)
        plain = told(rr.measure(problem, target=target))
        measured = {"as written": plain}
        tape = Tape(graph, _cut._share(problem.specs[1:]), small, measured)
        with keyed(problem):
            found = run(case, tape, problem, True)
    tape.save(case.name)
    text = json.dumps(found, indent=1)
    (HERE / "asked" / f"{case.name}.json").write_text(text + "\n")


def replay(case: Case) -> list[dict]:
    """The same searches on the tape alone."""
    tape = Tape.load(case.name)
    with without_program(tape):
        problem: Any = SimpleNamespace(loss=None, specs=((),), step=None)
        return run(case, tape, problem, False)


def expected(case: Case) -> list[dict]:
    return json.loads((HERE / "asked" / f"{case.name}.json").read_text())


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        (record_model if CASES[name].is_modelled else record)(CASES[name])
        number = len(Tape.load(name).measured)
        print(f"{name}: {number} programs", flush=True)
