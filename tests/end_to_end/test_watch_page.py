"""The live page in Chromium."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager

import psutil
import pytest

from holdfast.bootstrap.web.serve import AccessRules, bind, serving
from holdfast.bootstrap.web.watch_app import RunBoard, watch_app
from tests.support.browser import browser, page_at
from tests.support.command_line import corpus, environment, start, tiny
from tests.support.run_folders import add_event, add_steps, hold, make_run

WIDE = {"viewport": {"width": 1300, "height": 900}}
TOKEN = "a-token-of-many-letters"
SHOWN_STEP = "Number(document.querySelector('#step b')?.textContent.replaceAll(',', '') ?? -1)"
CONTRASTS = """() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([red, green, blue]) => [red, green, blue].map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const color = numbers(getComputedStyle(each).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!hasText || !node.checkVisibility() || node.closest(":disabled, .visually-hidden, noscript")) continue;
    const [one, other] = [numbers(getComputedStyle(node).color), behind(node)].map(light).sort((a, b) => b - a);
    found.push([(one + 0.05) / (other + 0.05), node.textContent.trim().slice(0, 40)]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@pytest.fixture
def run(tmp_path):
    folder = make_run(tmp_path / "run", origins={"run.budget.steps": "command line"})
    hold(folder)
    add_event(folder, "RunStarted", step=0, tokens=0, memory_limit=4 * 10**9, device="cpu", parameters=12_000, ranks=1)
    add_event(folder, "RolledBack", step=100, tokens=1, from_step=150, reason="the loss rose by 1.30")
    add_steps(folder, range(1, 301))
    return folder


@contextmanager
def served(*folders, token=None, port=0):
    board, bound = RunBoard(folders), bind("127.0.0.1", port)
    with closing(board), serving(watch_app(board, AccessRules(token)), bound) as address:
        yield address


def wait_for(page, expression, seconds=60):
    """Wait until a JavaScript ``expression`` is true; the page's policy forbids Playwright's own way."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def wait_for_step(page, step, seconds=60):
    wait_for(page, f"{SHOWN_STEP} >= {step}", seconds)


def last_step(page, title):
    """Return the last step of the chart called ``title``, from its description for screen readers."""
    chart = page.get_by_role("group", name=re.compile(f"^{title}")).first
    steps = re.findall(r"step [\d,]+ to ([\d,]+)", chart.get_attribute("aria-label"))
    return max((int(found.replace(",", "")) for found in steps), default=0)


def wait_for_point(page, title, step, seconds=60):
    deadline = time.monotonic() + seconds
    while (last := last_step(page, title)) < step:
        assert time.monotonic() < deadline, f"{title} ends at step {last}, not {step}"
        page.wait_for_timeout(50)


def test_the_page_shows_a_run_and_follows_it(chromium, run):
    """Curves, events and figures of a run are there, and a new step comes into the figures and curves by itself."""
    with served(run) as address, page_at(chromium, address, **WIDE) as page:
        wait_for_step(page, 300)
        wait_for_point(page, "Loss", 300)
        assert page.title() == "4.7000 · step 300 · run"
        wait_for(page, "document.querySelector('#events').innerText.includes('ROLLED BACK to step 100')")
        assert page.locator("#events").inner_text().count("ROLLED BACK to step 100") == 1
        assert page.locator("#state").inner_text() == "training"
        page.get_by_role("tab", name="Settings").click()
        wait_for(page, "document.querySelector('#settings-table').textContent.includes('run.budget.steps')")
        assert "run.budget.steps\t1000\tcommand line" in page.locator("#settings-table").inner_text()
        add_steps(run, range(301, 302))
        wait_for_point(page, "Loss", 301)
        wait_for_step(page, 301)  # the curve may have been fetched before the state that names the step
        assert page.evaluate(SHOWN_STEP) == 301


@pytest.mark.slow
def test_charts_come_and_go_with_the_runs_that_have_them(chromium, run, tmp_path):
    """A chart is there once, as long as a shown run has its metric, and a new one shows the range that is zoomed to."""
    other = make_run(tmp_path / "other")
    add_steps(other, range(1, 301))
    with (other / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": step, "tokens": 1, "mfu": 0.5}) + "\n" for step in range(301, 320))
    titles = "[...document.querySelectorAll('.chart-title')].map((each) => each.textContent)"
    count = f"{titles}.filter((each) => each.includes('utilization')).length"
    with served(run, other) as address, page_at(chromium, address, **WIDE) as page:
        wait_for(page, f"{count} === 1")
        page.locator("#toggle-1").click()
        wait_for(page, f"{count} === 0")
        page.locator("#curves [role=group]").first.press("+")
        wait_for(page, "!document.querySelector('#reset').hidden")
        page.locator("#toggle-1").click()
        wait_for(page, f"{count} === 1")
        assert page.evaluate(f"new Set({titles}).size === {titles}.length")


@pytest.mark.slow
def test_the_server_may_be_started_again_meanwhile(chromium, run):
    """When the server ends the page says so, and when there is one again at its address the page goes on."""
    with ExitStack() as first:
        address = first.enter_context(served(run))
        port = int(address.split(":")[2].strip("/"))
        with page_at(chromium, address, **WIDE) as page:
            wait_for_step(page, 300)
            page.evaluate("window.stays = true")
            first.close()
            wait_for(page, "document.querySelector('#connection').textContent.includes('no connection')")
            with served(run, port=port):
                add_steps(run, range(301, 311))
                wait_for_point(page, "Loss", 310)
                assert page.evaluate("window.stays") is True
                assert page.locator("#connection").inner_text() == ""


@pytest.mark.slow
def test_the_token_is_asked_for(chromium, run):
    """Without the token there is a field for it and no byte of the run; the token opens the page, a wrong one not."""
    with served(run, token=TOKEN) as address, page_at(chromium, address, **WIDE) as page:
        for given in ("wrong", TOKEN):
            assert "needs its token" in page.inner_text("h1")
            assert "run" not in page.title()
            page.get_by_label("Token").fill(given)
            page.get_by_role("button", name="Open").click()
            page.wait_for_load_state()
        wait_for_step(page, 300)
        assert TOKEN not in page.url
        page.reload()
        wait_for_step(page, 300)
        page.get_by_role("button", name="Save").click()
        page.locator("#confirm-yes").click()
        wait_for(page, "document.querySelector('#asked').textContent === 'asked for SAVE'")


@pytest.mark.slow
def test_the_buttons_ask_first(chromium, run):
    """Cancelling asks nothing of the run, confirming creates the file, and the page says what was asked for."""
    with served(run) as address, page_at(chromium, address, **WIDE) as page:
        wait_for_step(page, 300)
        page.get_by_role("button", name="Stop").click()
        page.keyboard.press("Enter")  # the button that cancels has the focus
        page.wait_for_timeout(300)
        assert not (run / "STOP").exists()
        page.get_by_role("button", name="Stop").click()
        page.locator("#confirm-yes").click()
        wait_for(page, "document.querySelector('#asked').textContent === 'asked for STOP'")
        assert (run / "STOP").exists()
        assert page.get_by_role("button", name="Stop").is_disabled()
        (run / "STOP").unlink()
        add_event(run, "RunFinished", step=300, tokens=1)
        wait_for(page, "document.querySelector('#asked').hidden")
        wait_for(page, "document.querySelector('#save').disabled")


@pytest.mark.slow
def test_no_other_site_can_press_a_button(chromium, run):
    """A page of another site, also of another port of this machine, cannot stop a run, read it, or frame it."""
    pressing = """async (address) => {
      const url = `${address}api/runs/0/stop`;
      const tries = [[url, { method: "POST" }], [url, { method: "POST", mode: "no-cors" }],
        [url, { method: "POST", headers: { "X-Holdfast": "1" } }], [`${address}api/state`, {}]];
      const answers = await Promise.all(tries.map(([to, how]) => fetch(to, { credentials: "include", ...how })
        .then((answer) => answer.text()).catch(() => "refused")));
      const form = Object.assign(document.createElement("form"), { method: "post", action: url, target: "inside" });
      const frame = Object.assign(document.createElement("iframe"), { name: "inside", src: address });
      document.body.append(frame, form);
      await new Promise((done) => { frame.onload = done; setTimeout(done, 2000); });
      form.submit();
      await new Promise((done) => setTimeout(done, 500));
      let inside;
      try { inside = frame.contentDocument?.body.textContent ?? ""; } catch { inside = ""; }
      return [...answers, inside];
    }"""

    async def foreign(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": b"<!doctype html><title>other</title><body>"})

    with served(run) as address, serving(foreign, bind("127.0.0.1", 0)) as other:
        context = chromium.new_context()
        page = context.new_page()
        page.goto(other)
        *answers, inside = page.evaluate(pressing, address)
        context.close()
    assert set(answers) <= {"refused", ""}  # the browser shows none of them to the other page
    assert "step" not in inside
    assert not (run / "STOP").exists()


@pytest.mark.slow
def test_a_zoomed_curve_is_fetched_as_finely_as_it_is_shown(chromium, tmp_path):
    """A drag shows single steps in all curves, events stay clickable, and a double click shows all again."""
    run = make_run(tmp_path / "run")
    add_steps(run, range(1, 8001))
    add_event(run, "RolledBack", step=100, tokens=1, from_step=4000, reason="the loss rose")
    asked = []
    with served(run) as address, page_at(chromium, address, **WIDE) as page:
        page.on("request", lambda request: asked.append(request.url))
        wait_for_step(page, 8000)
        wait_for_point(page, "Loss", 8000)
        plot = page.locator(".chart-plot").first
        box = plot.bounding_box()
        page.mouse.move(box["x"] + 200, box["y"] + 100)
        page.mouse.down()
        page.mouse.move(box["x"] + 260, box["y"] + 100, steps=4)
        page.mouse.up()
        wait_for(page, "!document.querySelector('#reset').hidden")
        page.wait_for_timeout(600)
        assert any("first=" in url for url in asked)
        label = plot.get_attribute("aria-label")
        first, last = (int(found.replace(",", "")) for found in re.search(r"step ([\d,]+) to ([\d,]+)", label).groups())
        assert 1000 < first < last < 3500
        plot.dblclick()
        wait_for(page, "document.querySelector('#reset').hidden")
        page.locator("#events button").first.click()
        wait_for(page, "document.querySelector('#range').textContent.includes('4,200')")
        page.keyboard.press("Escape")
        page.keyboard.press("l")
        assert page.locator("#log").is_checked()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1500])
def test_the_page_is_readable_everywhere(chromium, run, tmp_path, scheme, width):
    """No window is too narrow for the page, and each text has a contrast of 4.5 to 1 or more, as WCAG AA asks."""
    other = make_run(tmp_path / "a-run-with-a-rather-long-name-1e-3")
    add_event(other, "RunStarted", step=0, tokens=0, device="NVIDIA H100 80GB HBM3", parameters=10**9, ranks=8)
    add_event(other, "CheckpointFailed", step=50, tokens=1, reason="periodic", problem="the disk is full")
    add_steps(other, range(1, 201), salt=1.0)
    options = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    with served(other, run) as address, page_at(chromium, address, **options) as page:
        wait_for_point(page, "Loss", 300)
        for tab in ("Samples", "Settings", "Log"):
            page.get_by_role("tab", name=tab).click()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
            found = page.evaluate(CONTRASTS)
            assert len(found) > 50
            assert [each for each in found if each[0] < 4.5] == [], tab
        page.screenshot(path=tmp_path / f"{scheme}-{width}.png", full_page=True)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_is_followed_over_its_restart(chromium, tmp_path):
    """SAVE and STOP of the monitor's page are obeyed, the page ends with the run, and goes on after its next start."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=100000", "state_store.every=1000000", "evaluation.every=50")
    folder = tmp_path / "runs" / "default"
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    settings.append(f"monitors=[jsonl, {{kind: page, port: {port}}}]")

    def until(process, text):
        for line in process.stderr:
            if text in line:
                return line
        return pytest.fail(f"no line with {text}")

    with started("train", *settings, cwd=tmp_path) as process:
        assert f"http://127.0.0.1:{port}/" in until(process, "page: ")
        with page_at(chromium, f"http://127.0.0.1:{port}/", **WIDE) as page:
            wait_for_step(page, 5, seconds=100)
            page.evaluate("window.stays = true")
            page.get_by_role("button", name="Save").click()
            page.locator("#confirm-yes").click()
            wait_for(page, "document.querySelector('#checkpoints').textContent.includes('written')")
            assert not (folder / "SAVE").exists()
            page.get_by_role("button", name="Stop").click()
            page.locator("#confirm-yes").click()
            assert process.wait(60) == 0
            wait_for(page, "document.querySelector('#connection').textContent !== ''")
            last = page.evaluate(SHOWN_STEP)
            with started("train", *settings, cwd=tmp_path) as again:
                wait_for_step(page, last + 20, seconds=200)
                assert page.evaluate("window.stays") is True
                wait_for(page, "document.querySelector('#events').textContent.includes('resumed at step')")
                assert page.locator("#events").inner_text().count("resumed at step") == 1
                again.send_signal(signal.SIGKILL)
                again.wait(60)
                deadline = time.monotonic() + 60
                while not _is_free(port):
                    assert time.monotonic() < deadline, "the page outlives its run"
                    time.sleep(0.05)


@contextmanager
def started(*arguments, cwd):
    """Start a command, and kill it where the block ends before it."""
    with start(*arguments, cwd=cwd) as process:
        try:
            yield process
        finally:
            process.kill()


def _is_free(port):
    try:
        bind("127.0.0.1", port).close()
    except Exception:  # noqa: BLE001  not yet
        return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_million_steps_open_at_once(chromium, tmp_path):
    """A run of a million steps is there in seconds, its one spike too, in a server of 200 MB, and zooms smoothly."""
    run = make_run(tmp_path / "run")
    line = (
        '{"step": %d, "tokens": %d, "loss": %.15f, "lr": %.18f, "grad_norm": %.15f, "tokens_per_second": %.11f, '
        '"data_wait_seconds": %.18f, "batches_ready": 3, "bytes_read": 145292, "read_retries": 0, "rejected": 0, '
        '"memory_bytes": 521486336, "micro_batch": 4, "dropped_updates": 0, "rollbacks": 0, "memory_retries": 0, '
        '"goodput": %.16f}\n'
    )
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, 1_000_001):
            wave, loss = step % 97 / 97, 9.0 if step == 654_321 else 3.0
            file.write(line % (step, step * 256, loss + wave / 9, wave / 1e3, 1 + wave, 8e3 + wave, wave / 1e4, wave))
    command = [sys.executable, "-m", "holdfast", "watch", str(run), "--port", "0"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        address = re.search(r"http://\S+", process.stdout.readline())[0]
        try:
            began = time.monotonic()
            with page_at(chromium, address, **WIDE) as page:
                wait_for_step(page, 990_000)
                wait_for_point(page, "Loss", 990_000)
                opened = time.monotonic() - began
                wait_for_point(page, "Loss", 1_000_000, seconds=200)
                page.wait_for_timeout(1500)
                assert "largest 9" in page.locator(".chart-plot").first.get_attribute("aria-label")
                still, zooming = page.evaluate(FRAMES)
            memory = psutil.Process(process.pid).memory_info().rss / 1e6
        finally:
            process.kill()
    figures = {"seconds": opened, "megabytes": memory, "frames": [still, zooming]}
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    assert opened < 2.0 * (1 + os.getloadavg()[0])  # this machine may have other work
    assert memory < 200
    assert zooming > still / 2


FRAMES = """async () => {
  const plot = document.querySelector(".chart-plot");
  plot.focus();
  let count = 0, isOver = false;
  const tick = () => { count += 1; if (!isOver) requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
  await new Promise((done) => setTimeout(done, 2000));
  const before = count;
  const began = performance.now(), { left, top } = plot.getBoundingClientRect();
  while (performance.now() - began < 2000) {
    const deltaY = performance.now() - began < 1000 ? -40 : 40;
    const where = { clientX: left + 300, clientY: top + 80, bubbles: true, cancelable: true };
    plot.dispatchEvent(new WheelEvent("wheel", { deltaY, ctrlKey: true, ...where }));
    await new Promise((done) => setTimeout(done, 16));
  }
  isOver = true;
  return [before, count - before];
}"""
