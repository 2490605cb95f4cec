"""The line charts of the live page and the report, in a browser."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from tests.support.browser import browser, page_at

STATIC = files("holdfast.bootstrap.web").joinpath("static")
BUILD = """({options, count}) => {
  window.asked = [];
  window.charts = [];
  for (let number = 0; number < count; number += 1) {
    const place = document.createElement("div");
    document.body.append(place);
    window.charts.push(new LineChart(place, {...options, onRange: (range) => window.asked.push(range)}));
  }
  linkCharts(window.charts);
}"""
# Whether the column of pixels at the share `x` of the width has the colour of the first series.
HAS_LINE = """(x) => {
  const canvas = document.querySelector(".chart-plot canvas");
  const column = canvas.getContext("2d").getImageData(Math.round(canvas.width * x), 20, 3, canvas.height - 60).data;
  for (let at = 0; at < column.length; at += 4) {
    if (column[at + 2] > 120 && column[at] < 90 && column[at + 3] > 150) return true;
  }
  return false;
}"""
# The opaque colours of the signs above the plot, and those of the squares in the read-out, as "r,g,b".
SIGNS = """() => {
  const canvas = document.querySelector(".chart-plot canvas"), found = new Set();
  const rows = canvas.getContext("2d").getImageData(0, 5, canvas.width, 8).data;
  for (let at = 0; at < rows.length; at += 4) if (rows[at + 3] === 255) found.add(rows.slice(at, at + 3).join(","));
  return [...found];
}"""
SQUARES = """() => [...document.querySelectorAll(".chart-tip span")]
  .map((each) => getComputedStyle(each).color.match(/\\d+/g).slice(0, 3).join(","))"""
FRAMES = """() => new Promise((resolve) => {
  const spent = [], end = performance.now() + 800;
  const turn = () => {
    const began = performance.now();
    window.charts[0].setRange([began % 300, 1500 + began % 300]);
    for (const chart of window.charts) chart.paintNow();
    spent.push(performance.now() - began);
    if (performance.now() < end) requestAnimationFrame(turn);
    else resolve(spent.sort((a, b) => a - b)[Math.floor(spent.length / 2)]);
  };
  requestAnimationFrame(turn);
})"""


@pytest.fixture(scope="module")
def opened():
    """Give one browser to all tests, as it takes seconds to start."""
    with browser() as found:
        yield found


@pytest.fixture
def chart_page(opened, tmp_path):
    """Give a function that shows ``count`` linked charts with ``options``, and returns the page."""
    names = ("uplot.js", "charts.js")
    scripts = "".join(f"<script>{STATIC.joinpath(name).read_text()}</script>" for name in names)
    style = "".join(f"<style>{STATIC.joinpath(name).read_text()}</style>" for name in ("uplot.css", "theme.css"))
    (tmp_path / "charts.html").write_text(f'<!doctype html><meta charset="utf-8">{style}<body>{scripts}</body>')
    with page_at(opened, (tmp_path / "charts.html").as_uri(), viewport={"width": 800, "height": 600}) as page:

        def build(count=1, **options):
            page.evaluate(BUILD, {"options": options, "count": count})
            page.wait_for_timeout(60)
            return page

        yield build


def series(values, **more):
    return {"name": "loss", "x": [*range(1, len(values) + 1)], "y": values, **more}


def drag(page, begin, end):
    box = page.locator(".chart-plot").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * begin, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, box["y"] + 80, steps=4)
    page.mouse.up()


def test_a_value_that_is_no_number_is_a_gap(chart_page):
    """Nothing is drawn over steps without a number, however it is written, and the line goes on after them."""
    values = [5.0] * 40 + ["NaN", None, "Infinity"] * 8 + [5.0] * 40
    page = chart_page(series=[series(values)])
    assert [page.evaluate(HAS_LINE, x) for x in (0.2, 0.53, 0.9)] == [True, False, True]


def test_sizes_have_the_units_of_all_sizes_and_round_ticks(chart_page):
    """A size of 1.5 * 2^30 bytes is 1.5 GiB, as in tables, and the ticks of its axis are round in GiB."""
    page = chart_page(format="bytes", zero=True, series=[series([0, 1.5 * 2**30, 4 * 2**30])])
    texts = page.evaluate("[1023, 1.5 * 2 ** 30].map(LineChart.FORMATS.bytes)")
    ticks = page.evaluate("window.charts[0]._uplot.axes[1]._splits")
    assert texts == ["1023 B", "1.5 GiB"]
    assert len(ticks) > 2
    assert all(tick % 2**29 == 0 for tick in ticks)


def test_a_drag_zooms_all_linked_charts_and_asks_once_each(chart_page):
    """The host is asked for finer data of the range, and a double click asks for everything again."""
    page = chart_page(count=2, series=[series([1.0] * 100)])
    drag(page, 0.3, 0.6)
    page.wait_for_function("window.asked.length === 2")
    (low, high), other = page.evaluate("window.charts.map((chart) => chart.range)")
    assert [low, high] == other
    assert 20 < low < 35
    assert 50 < high < 65
    page.locator(".chart-plot").first.dblclick()
    page.wait_for_function("window.asked.length === 4")
    assert page.evaluate("[window.asked[3], window.charts[1].range]") == [None, None]


def test_the_wheel_zooms_only_where_it_is_meant(chart_page):
    """Someone who scrolls a page over a chart goes on scrolling; with Ctrl, or after a click, the wheel zooms."""
    page = chart_page(series=[series([1.0] * 100)])
    box = page.locator(".chart-plot").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 80)
    page.mouse.wheel(0, -200)
    page.wait_for_timeout(50)
    assert page.evaluate("window.charts[0].range") is None
    page.mouse.click(box["x"] + 300, box["y"] + 80)
    page.mouse.wheel(0, -200)
    page.wait_for_function("window.charts[0].range !== null")
    first, last = page.evaluate("window.charts[0].range")
    assert 30 < last - first < 99


def test_everything_can_be_done_with_the_keyboard(chart_page):
    """Arrows read values aloud, E goes to the next event, plus zooms and Escape shows everything."""
    events = [{"x": 60, "text": "rolled back <b>here</b>", "level": "warning"}]
    page = chart_page(series=[series([float(step) for step in range(1, 101)])], events=events)
    page.locator(".chart-plot").focus()
    spoken = "document.querySelector('[aria-live]').textContent"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert page.evaluate(spoken) == "step 11, loss 11"
    page.keyboard.press("e")
    assert page.evaluate(spoken) == "step 60, loss 60, 60: rolled back <b>here</b>"
    assert page.locator(".chart-tip b").count() == 0
    page.keyboard.press("+")
    first, last = page.evaluate("window.charts[0].range")
    assert last - first == pytest.approx(49.5)
    page.keyboard.press("Escape")
    assert page.evaluate("window.charts[0].range") is None


def test_a_mark_has_the_colour_of_its_run(chart_page):
    """The sign of a run's event has the colour of its line, also in the read-out; without a run that of the level."""
    both = [series([1.0] * 100, name="a", color=0), series([2.0] * 100, name="b", color=1)]
    page = chart_page(series=both, events=[{"x": 60, "text": "b: failed", "level": "error", "color": 1}])
    page.locator(".chart-plot").focus()
    page.keyboard.press("e")
    page.wait_for_function(f"({SQUARES})().length === 3")
    first, second, mark = page.evaluate(SQUARES)
    assert first != second == mark
    assert page.evaluate(SIGNS) == [second]
    page.evaluate("window.charts[0].update({events: [{x: 60, text: 'failed', level: 'error'}]})")
    page.evaluate("window.charts[0].paintNow()")
    assert second not in page.evaluate(SIGNS)
    assert len(page.evaluate(SQUARES)) == 2


def test_the_words_of_a_chart_name_its_extremes(chart_page):
    """Those who do not see the curve hear its ends, and the spikes within a point that stands for many steps."""
    found = series([3.0, "NaN", 2.0], low=[3.0, "NaN", 0.25], high=[3.0, "NaN", 99.5])
    page = chart_page(title="Loss", series=[found])
    assert (
        page.locator(".chart-plot")
        .get_attribute("aria-label")
        .startswith("Loss. loss: step 1 to 3, first 3, last 2, smallest 0.25 at 3, largest 99.5 at 3.")
    )


def test_the_axis_includes_the_spikes(chart_page):
    """A band of extremes is drawn within the axis, not cut off at the means."""
    page = chart_page(series=[series([1.0] * 60, low=[1.0] * 60, high=[1.0] * 30 + [50.0] + [1.0] * 29)])
    limits = page.evaluate("[window.charts[0]._uplot.scales.y.min, window.charts[0]._uplot.scales.y.max]")
    assert limits[1] > 50.0


def test_the_axis_of_a_low_chart_has_a_scale(chart_page):
    """A chart has two labels at least on its axis of values, as one alone shows no scale."""
    page = chart_page(height=170, series=[series([3.846, 3.333, 3.218])])
    page.evaluate("""() => {
      window.labels = [];
      const write = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
        if (this.textAlign === "right" && this.textBaseline === "middle") window.labels.push(text);
        write.call(this, text, ...place);
      };
      window.charts[0].paintNow();
    }""")
    assert len(set(page.evaluate("window.labels"))) > 1


@pytest.mark.parametrize(("log", "smoothing"), [(False, 0.0), (True, 0.9)])
def test_two_lines_of_2000_points_are_drawn_60_times_a_second(chart_page, log, smoothing):
    """The processor needs less than a frame of 16.7 ms to draw both, half of the time at least on a busy machine."""
    values = [5.0 / (1 + step / 200) for step in range(2000)]
    band = {"low": [value * 0.9 for value in values], "high": [value * 1.1 for value in values]}
    lines = [series(values, **band), {**series(values, **band), "name": "other"}]
    page = chart_page(series=lines, log=log, smoothing=smoothing)
    assert page.evaluate(FRAMES) < 16.7


def test_texts_of_a_chart_are_no_markup(chart_page):
    """Names of runs come from folders, and texts of events from anywhere."""
    hostile = "<img src=x onerror='window.hacked=1'>"
    page = chart_page(title=hostile, series=[{**series([1.0, 2.0]), "name": hostile}] * 2)
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert json.dumps(hostile)[1:-1] in json.dumps(page.locator(".chart-title").inner_text())
