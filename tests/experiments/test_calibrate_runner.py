"""Running jobs: limits, failures, a run that goes on; with jobs that only pretend."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.calibrate import runner, schedule
from experiments.calibrate.records import Writer, latest, read, state_of
from experiments.calibrate.runner import Options, environment_of, fraction
from experiments.calibrate.schedule import Job

ROOT = Path(__file__).parents[2]
JOBS = [Job("exact", "", 20), Job("offload", "", 20), Job("kernels", "", 20)]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Runs three jobs; says how each of them is to end."""
    monkeypatch.setattr(runner, "JOB_MODULE", "tests.experiments.fake_job")
    monkeypatch.setattr(schedule, "jobs", lambda platform: JOBS)

    def run(only=(), platform="cpu", seconds=600.0, **ends):
        monkeypatch.setenv("FAKE_JOBS", json.dumps(ends))
        options = Options(tmp_path, seconds, platform, quick=True, only=tuple(only))
        code = runner.run(options)
        states = {job: state_of(r) for job, r in latest(results(tmp_path)).items()}
        return code, states

    return run


def results(folder):
    return read(folder / "results.jsonl")


def ended(folder, job):
    return [r for r in results(folder) if r.job == job and r.kind == "ended"][-1]


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("fail", "ValueError: no kernel"),
        ("crash", "ended with exit code -6: the last word"),
        ("killed", "ended with exit code -9: it said nothing"),
        ("exit", "ended with exit code 3: it said nothing"),
    ],
)
def test_a_job_that_fails_is_one_line_and_the_others_go_on(start, tmp_path, end, error):
    code, states = start(offload=end)
    assert code == 1
    good = dict.fromkeys(("doctor", "exact", "kernels", "card"), "done")
    assert states == good | {"offload": "failed"}
    assert ended(tmp_path, "offload")["error"] == error
    (row,) = told_of(tmp_path, "offload")
    assert "failed" in row
    assert error in row


@pytest.fixture
def afterwards(tmp_path, monkeypatch, start):
    """Runs what needs no device, after a run of all jobs or in an empty folder."""
    by_compiler = Job("again", "mlp", 20, 5, by_compiler=True)
    other = Job("again", "moe", 20, 5, by_compiler=True)
    monkeypatch.setattr(schedule, "jobs", lambda p: [*JOBS, by_compiler, other])

    def run(*only, after=True):
        if after:
            start(only=["exact"])
        before = len(results(tmp_path))
        options = Options(tmp_path, 60, "cpu", quick=True, only=only, absent=True)
        code = runner.run(options)
        begun = [r.job for r in results(tmp_path)[before:] if r.kind == "begun"]
        return code, begun

    return run


@pytest.mark.parametrize(
    ("only", "jobs"),
    [
        ((), ["card", "again mlp", "again moe"]),
        (("again moe",), ["card", "again moe"]),
        (("card",), ["card"]),
    ],
)
def test_without_the_device_only_what_needs_none_is_run(afterwards, only, jobs):
    assert afterwards(*only) == (0, jobs)


def test_without_the_device_there_has_to_be_a_run_of_one(afterwards, capsys):
    assert afterwards(after=False) == (2, [])
    assert "holds no results of a device" in capsys.readouterr().err


def told_of(folder, job):
    """What the first table says of a job."""
    lines = (folder / "summary.txt").read_text().split("\n\n")[2].splitlines()
    return [line for line in lines if line.startswith(f"{job} ")]


def test_a_part_that_fails_does_not_fail_its_job(start, tmp_path):
    code, states = start(offload="part")
    assert (code, states["offload"]) == (0, "done")
    assert "dots: ValueError: no such dots" in told_of(tmp_path, "offload")[0]


def test_a_job_is_stopped_at_its_limit_and_what_it_wrote_counts(
    start, monkeypatch, tmp_path
):
    monkeypatch.setattr(
        schedule, "jobs", lambda platform: [Job("exact", "", 1.4), *JOBS[1:]]
    )
    code, states = start(exact="hang")
    assert code == 1
    assert states == dict.fromkeys(states, "done") | {"exact": "stopped"}
    assert ended(tmp_path, "exact")["error"] == "stopped after 4 s"
    begun = [r["is_rest"] for r in results(tmp_path) if r.kind == "begun"]
    assert not any(begun)
    assert [
        r["median_s"]
        for r in results(tmp_path)
        if r.job == "exact" and "median_s" in r.data
    ] == [0.5]


def test_a_job_that_the_end_of_the_run_stops_is_the_next_runs_first(
    start, monkeypatch, tmp_path
):
    monkeypatch.setattr(schedule, "jobs", lambda platform: JOBS[:2])
    monkeypatch.setattr(runner, "CLOSING_S", 0.0)
    _, states = start(seconds=7.5, exact="hang")
    assert states["exact"] == "stopped"
    left = schedule.next_jobs(JOBS[:2], results(tmp_path))
    assert [job.kind for job in left] == ["exact", "offload"]


def test_jobs_for_which_no_time_is_left_are_skipped_and_told(start, tmp_path):
    code, states = start(seconds=1.0)
    assert (code, states["exact"], states["kernels"]) == (0, "skipped", "skipped")
    (line,) = [r for r in results(tmp_path) if r.job == "exact"]
    assert line["why"] == "0 s are left, and it needs 5; the next run goes on with it"
    assert start()[1] == dict.fromkeys(states, "done")


def test_a_run_that_goes_on_does_what_is_left_and_failures_last(start, tmp_path):
    start(exact="fail", only=["exact", "kernels"])
    before = len(results(tmp_path))
    code, states = start()
    begun = [r.job for r in results(tmp_path)[before:] if r.kind == "begun"]
    assert begun == ["doctor", "offload", "exact", "card"]
    assert (code, set(states.values())) == (0, {"done"})
    assert [r.attempt for r in results(tmp_path) if r.job == "exact"][-1] == 2


def test_what_was_changed_since_is_run_once_more(start, tmp_path, monkeypatch):
    start()
    changed = [replace(job, revision=1 + (job.kind == "offload")) for job in JOBS]
    monkeypatch.setattr(schedule, "jobs", lambda platform: changed)
    for jobs in (["doctor", "offload", "card"], ["doctor", "card"]):
        before = len(results(tmp_path))
        start()
        begun = [r for r in results(tmp_path)[before:] if r.kind == "begun"]
        assert [r.job for r in begun] == jobs
        revisions = {r.job: r["revision"] for r in begun}
        assert revisions.get("offload", 2) == 2


def test_results_of_two_machines_are_never_mixed(start, tmp_path, capsys):
    start(machine="H100, jax 0.11.2, card sizes", only=["exact"])
    code, states = start(machine="A100, jax 0.11.2, card sizes")
    assert code == 2
    assert "kernels" not in states
    assert "holds results of H100" in capsys.readouterr().err


def test_without_the_device_nothing_else_is_begun(start, tmp_path, capsys):
    code, states = start(doctor="fail", platform="gpu")
    assert (code, states) == (2, {"doctor": "failed"})
    assert "error: ValueError: no kernel" in capsys.readouterr().err


def test_at_most_six_files_are_written_and_the_log_keeps_the_ends(start, tmp_path):
    (tmp_path / "hlo.tgz.tmp").write_text("half of a file")
    start(offload="noise")
    names = {path.name for path in tmp_path.iterdir()}
    assert names <= {*runner.FILES}
    assert len(runner.FILES) == 6
    assert (tmp_path / "log.txt").stat().st_size < 250_000


FOREVER = """
import sys
from pathlib import Path
from experiments.calibrate import runner, schedule
from experiments.calibrate.schedule import Job
runner.JOB_MODULE = "tests.experiments.fake_job"
schedule.jobs = lambda platform: [Job("exact", "", 60), Job("kernels", "", 60)]
sys.exit(runner.run(runner.Options(Path(sys.argv[1]), 600, "cpu", quick=True)))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_killed_while_a_job_runs_leaves_no_process_and_goes_on(
    start, tmp_path, how
):
    environment = os.environ | {"FAKE_JOBS": json.dumps({"kernels": "hang"})}
    # What is started in the background, as this may be, ignores Ctrl-C.
    heard = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", heard + FOREVER, str(tmp_path)]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    # Killed as soon as the job that hangs has written its first result.
    wait_for(
        lambda: any(
            r.job == "kernels" and r.kind == "measured" for r in results(tmp_path)
        )
    )
    (job,) = children(process.pid)
    process.send_signal(how)
    process.wait(timeout=20)
    wait_for(lambda: not Path(f"/proc/{job}").exists())
    if how != signal.SIGKILL:
        assert "stopped" in told_of(tmp_path, "kernels")[0]
    before = len(results(tmp_path))
    _, states = start()
    begun = [r.job for r in results(tmp_path)[before:] if r.kind == "begun"]
    assert begun == ["doctor", "offload", "kernels", "card"]
    assert set(states.values()) == {"done"}


def wait_for(holds):
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def children(pid):
    return [
        int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ]


def test_carried_wheels_stay_on_the_path(tmp_path, monkeypatch):
    (tmp_path / "b-1-py3-none-any.whl").write_bytes(b"")
    monkeypatch.setenv("PYTHONPATH", f"/somewhere:{tmp_path}")
    found = environment_of(JOBS[0], Options(tmp_path), tmp_path)["PYTHONPATH"]
    wheel = str(tmp_path / "b-1-py3-none-any.whl")
    assert found.split(":") == [str(ROOT), "/somewhere", str(tmp_path), wheel]


def test_a_card_is_used_as_users_are_told_to(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    found = environment_of(JOBS[0], Options(tmp_path), tmp_path / "tuning")
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in found  # both: jaxlib refuses
    assert found["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"
    assert found["JAX_PLATFORMS"] == "cuda,cpu"
    assert found["XLA_FLAGS"].startswith("--xla_a=1 --xla_gpu_per_fusion_autotune_")
    cpu = environment_of(Job("card", by_compiler=True), Options(tmp_path), tmp_path)
    assert cpu["JAX_PLATFORMS"] == "cpu"


CARD = 85_029_158_912


@pytest.mark.parametrize("plan", [20_570_348_072, 1, 12_345_678_901, 80 * 10**9])
def test_a_plan_gets_its_bytes_in_four_digits_and_never_less(plan):
    share = fraction(plan, CARD, "plan")
    assert plan <= share * CARD < plan + 1.0001e-4 * CARD
    assert f"{share:.4f}" == f"{share:.6f}"[:6]
    assert fraction(plan, CARD, "less") <= fraction(plan * 95 // 100, CARD, "plan")


@pytest.mark.parametrize(
    ("said", "share"),
    [
        (None, 0.25),  # no race yet: what was said ahead of time
        (20 * 2**30, 0.3),  # what the compiler said here of this plan
        (19 * 2**30, 0.25),  # and of another plan of that name
    ],
)
def test_the_share_is_of_what_the_compiler_said_here_then_of_what_was_said(
    start, tmp_path, monkeypatch, said, share
):
    fit = Job("fit", "gpt2_xl_24", 20, room="plan")
    monkeypatch.setattr(schedule, "jobs", lambda platform: [fit])
    searched = {"name": "searched 24GiB", "bytes": 20 * 2**30, "plan": {}}
    made = {"variants": [searched]}
    monkeypatch.setattr(runner.plan_files, "read", lambda program, scale: made)
    if said:
        race = Writer(tmp_path / "results.jsonl", "race gpt2_xl_24", 1)
        race("predicted", variant="searched 24GiB", bytes=said)
        race("compiled", variant="searched 24GiB", bytes=24 * 2**30)
        race("compiled", variant="baseline", bytes=2**30)
    start(platform="gpu")
    (begun,) = [r for r in results(tmp_path) if r.job == fit.name and r.kind == "begun"]
    assert begun["memory_fraction"] == share


def test_a_plan_of_unknown_size_is_skipped_and_told(start, tmp_path, monkeypatch):
    fit = Job("over", "mlp", 20, room="less")
    monkeypatch.setattr(schedule, "jobs", lambda platform: [fit])
    start(platform="gpu")
    (line,) = [r for r in results(tmp_path) if r.job == fit.name]
    assert line["why"] == "no plan of mlp says how many bytes it takes"
