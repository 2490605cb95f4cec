"""`report`: what a run did, in one file."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from holdfast.bootstrap.run_folder.run_lock import take_lock
from holdfast.bootstrap.stages.attach.run_records import goodput_of
from holdfast.bootstrap.verification.fault_catalog import Planned
from tests.support.browser import browser, page_at
from tests.support.command_line import corpus, run_here, tiny
from tests.support.faulty_run import train_with_faults
from tests.support.written_runs import event, write_lines, write_run

DRAWN = """() => [...document.querySelectorAll(".chart-plot canvas")].slice(0, 3).map((canvas) => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return data.some((value) => value !== 0);
})"""
CHARTS = 'document.querySelectorAll(".chart-plot")'


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_equals_folder(facts: dict, run: Path) -> None:
    """Every figure of the facts is that of the files of ``run``."""
    metrics, events = lines_of(run / "metrics.jsonl"), lines_of(run / "events.jsonl")
    recorded: dict[str, tuple[list, list]] = {}
    for line in metrics:
        for name in line.keys() - {"step"}:
            if name != "tokens" or "loss" in line:
                steps, values = recorded.setdefault(name, ([], []))
                steps.append(line["step"])
                values.append(line[name])
    for name, (steps, values) in recorded.items():
        assert (facts["series"][name]["steps"], facts["series"][name]["values"]) == (steps, values), name
    assert facts["series"].keys() == recorded.keys()
    kinds = [each["event"] for each in events]
    expected = {
        "starts": kinds.count("RunStarted"),
        "roll_backs": kinds.count("RolledBack"),
        "memory_retries": kinds.count("MemoryExhausted"),
        "failed_saves": kinds.count("CheckpointFailed"),
    }
    assert expected.items() <= facts["incidents"].items()
    steps = [line for line in metrics if "loss" in line]
    figures = facts["figures"]
    assert [figures[name] for name in ("step", "tokens", "loss")] == [
        steps[-1][name] for name in ("step", "tokens", "loss")
    ]
    evaluations = [line for line in metrics if "eval_loss" in line]
    assert [each["eval_loss"] for each in facts["evaluations"]] == [each["eval_loss"] for each in evaluations]
    assert figures["best_evaluation"]["eval_loss"] == min(each["eval_loss"] for each in evaluations)
    assert facts["goodput"]["share"] == goodput_of(run).share
    saved = sorted(int(path.name.rpartition("-")[2]) for path in (run / "checkpoints").iterdir())
    assert sorted(each["step"] for each in facts["checkpoints"] if each["is_on_disk"]) == saved
    record = json.loads((run / "run.json").read_text())
    flat = {each["name"]: each["value"] for each in facts["settings"]}
    assert flat["optimizer.learning_rate"] == record["settings"]["optimizer"]["learning_rate"]
    assert [each["id"] for each in facts["data"]["versions"]] == [each["id"] for each in record["data_versions"]]


def data_of(page: Path) -> dict:
    """Return the data that a report draws."""
    text = page.read_text(encoding="utf-8").partition('id="report-data">')[2].partition("</script>")[0]
    return json.loads(text)


def test_a_run_writes_its_report_when_it_ends(tmp_path):
    """The file is in the run folder, its path is printed, and it has the figures of the folder's own files."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=6", "evaluation.every=3", "state_store.every=3")
    trained = run_here("train", *settings, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    run = tmp_path / "runs/default"
    assert re.search(r"^report: +runs/default/report.html$", trained.stdout, re.MULTILINE)
    printed = run_here("report", "runs/default", "--json", cwd=tmp_path)
    [facts] = json.loads(printed.stdout)["runs"]
    assert_equals_folder(facts, run)
    assert facts["state"] == "finished"
    assert facts["environments"][0]["versions"]["torch"]
    drawn = {each["name"]: each["y"] for each in data_of(run / "report.html")["charts"][0]["series"]}
    assert drawn["training"] == facts["series"]["loss"]["values"]
    again = run_here("train", *settings, "run.report=false", "--fresh", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert not (run / "report.html").exists()
    assert "report:" not in again.stdout


def test_the_forms_of_a_report(tmp_path):
    """HTML goes to the run folder or to --output, Markdown and JSON are printed; other folders are refused."""
    write_run(tmp_path / "runs/a", losses=[3.0, 2.0])
    write_run(tmp_path / "runs/b", losses=[2.0, 1.0])
    assert run_here("report", "runs/a", cwd=tmp_path).stdout == "report: runs/a/report.html\n"
    assert run_here("report", "runs/a", "runs/b", cwd=tmp_path).stdout == "report: report.html\n"
    assert len(data_of(tmp_path / "report.html")["charts"][0]["series"]) == 2
    assert run_here("report", "runs/a", "--markdown", cwd=tmp_path).stdout.startswith("# a\n")
    written = run_here("report", "runs/a", "--json", "--output", "facts.json", cwd=tmp_path)
    assert written.stdout == "report: facts.json\n"
    assert json.loads((tmp_path / "facts.json").read_text())["runs"][0]["name"] == "a"
    refused = run_here("report", "runs", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "runs is not a run folder" in refused.stderr


def test_a_report_works_in_a_browser_without_a_network(tmp_path):
    """Chromium draws the curves, no request leaves, nothing hostile runs, and a person can zoom, read and smooth."""
    hostile = "</script><script>window.hacked=1</script><img src=//evil.example/x onerror='window.hacked=1'>"
    events = [event("RunStarted", 0), event("RolledBack", 20, from_step=40, reason=hostile), event("RunFinished", 400)]
    losses = [5.0 / (1 + step / 50) for step in range(400)]
    losses[100] = "NaN"
    run = write_run(tmp_path / "a", losses=losses, events=events)
    with (run / "metrics.jsonl").open("a") as file:
        for step in range(0, 401, 50):
            file.write(json.dumps({"step": step, "eval_loss": 5.0 / (1 + step / 50)}) + "\n")
    assert run_here("report", str(run), cwd=tmp_path).returncode == 0
    moved = shutil.move(run / "report.html", tmp_path / "mailed.html")
    address, requests = Path(moved).as_uri(), []
    with browser() as opened, page_at(opened, "about:blank", offline=True) as page:
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        page.wait_for_selector("html[data-is-ready]")
        page.wait_for_timeout(200)
        assert page.evaluate(DRAWN) == [True] * len(page.evaluate(DRAWN))
        assert page.evaluate("window.hacked") is None
        plot = page.locator(".chart-plot").first
        label = plot.get_attribute("aria-label")
        assert "training: step 1 to 400" in label
        assert f"smallest {losses[-1]:.5g} at 400" in label
        assert "Events: 1." in label
        box = plot.bounding_box()
        page.mouse.move(box["x"] + 300, box["y"] + 150)
        page.wait_for_function("!document.querySelector('.chart-tip').hidden")
        assert "training" in page.locator(".chart-tip").first.inner_text()
        page.mouse.down()
        page.mouse.move(box["x"] + 500, box["y"] + 150, steps=5)
        page.mouse.up()
        page.wait_for_timeout(100)
        page.locator("#reset").click()
        plot.focus()
        page.keyboard.press("e")
        page.wait_for_function("document.querySelector('[aria-live]').textContent.includes('ROLLED BACK')")
        page.keyboard.press("ArrowRight")
        page.locator("#log").check()
        page.locator("#smoothing").fill("0.9")
        assert page.locator("#smoothing-value").inner_text() == "0.90"
        page.locator("#theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.locator(".chart-legend button").first.click()
        assert page.locator(".chart-legend button").first.get_attribute("aria-pressed") == "false"
    assert requests == [address]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_report_of_a_disturbed_run_equals_its_folder(tmp_path):
    """Two restarts, a roll-back and a retry after a shortage of memory are reported with the folder's figures."""
    health = ["recovery.health.window=16", "recovery.health.spike_steps=3"]
    sizes = ["optimizer.micro_batch=4", "run.budget.steps=90", "evaluation.every=15"]
    faults = [Planned("oom", 5), Planned("kill", 22), Planned("spike", 50, 3), Planned("sigterm", 70)]
    assert train_with_faults([*tiny(corpus(tmp_path)), *health, *sizes], faults, tmp_path) == [-9, 143, 0]
    run = tmp_path / "runs/default"
    [facts] = json.loads(run_here("report", str(run), "--json", cwd=tmp_path).stdout)["runs"]
    assert_equals_folder(facts, run)
    incidents = {name: facts["incidents"][name] for name in ("starts", "roll_backs", "memory_retries")}
    assert incidents == {"starts": 3, "roll_backs": 1, "memory_retries": 1}
    data = data_of(run / "report.html")
    for chart in data["charts"]:
        for series in chart["series"]:
            assert series["y"] in [each["values"] for each in facts["series"].values()]
    assert sum("ROLLED BACK" in each["text"] for each in data["events"]) == 1
    requests = []
    with browser() as opened, page_at(opened, "about:blank", offline=True) as page:
        page.on("request", lambda request: requests.append(request.url))
        page.goto((run / "report.html").as_uri())
        page.wait_for_selector("html[data-is-ready]")
        text = page.locator("main, body").first.inner_text()
    assert requests == [(run / "report.html").as_uri()]
    assert f"{facts['figures']['loss']:.4f}" in text
    assert "ROLLED BACK to step" in text


def test_a_long_run_is_reported_in_seconds(tmp_path):
    """A hundred thousand steps take a report of about a megabyte, on a busy machine too."""
    run = write_run(tmp_path / "a")
    steps = range(1, 100_001)
    write_lines(run / "metrics.jsonl", [{"step": step, "tokens": step, "loss": 1.0, "lr": 0.1} for step in steps])
    before = os.times()
    assert run_here("report", str(run), cwd=tmp_path).returncode == 0
    after = os.times()
    assert after.user - before.user < 10.0
    assert (run / "report.html").stat().st_size < 2_000_000


@pytest.mark.parametrize("refusal", ["another process", "another model"])
def test_a_refused_start_leaves_the_report_alone(tmp_path, refusal):
    """A start that is not one of the run, as another trains it or a setting differs, does not write its report."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=1", "evaluation.every=0")
    trained = run_here("train", *settings, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    report = tmp_path / "runs/default/report.html"
    before = report.stat()
    if refusal == "another process":
        lock = take_lock(tmp_path / "runs/default")
        refused = run_here("train", *settings, cwd=tmp_path)
        os.close(lock)
    else:
        refused = run_here("train", *settings, "model.config.num_hidden_layers=3", cwd=tmp_path)
    assert refused.returncode in (2, 4), refused.stderr
    assert (report.stat().st_ino, report.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
