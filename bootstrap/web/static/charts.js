/* Line charts on canvas, for the live page and the report. theme.css has their colours and their look. Load
   chart_paint.js, which paints them, first.

   const chart = new LineChart(element, options);   chart.update(options);   chart.setRange([10, 90] or null);
   linkCharts([chart, other]);                      chart.range;  chart.summary();  chart.destroy();

   Options, all of them optional; update() keeps those that it is not given:
     title      text above the plot
     series     list of {name, x, y, low, high, style, color, smooth}:
                x      ascending numbers, such as steps
                y      numbers; null, NaN and infinite values are gaps ("NaN" too)
                low, high   smallest and largest value of the steps that a point stands for, drawn as a band
                style  "line" (default), "both" (line and dots) or "points"
                color  number of the colour from 0; default: the position in the list
                smooth false exempts the series from smoothing
     events     list of {x, text, level, color}; level is "info" (default), "good", "warning" or "error"; color is
                the number of the colour of the run that it belongs to, default: that of the level
     log        true for a logarithmic y axis; values that are not positive are gaps
     smoothing  weight of the exponential mean over the points, from 0 (none) to less than 1
     format     how values are written: "number" (default), "integer", "bytes", "percent" (of 1), "seconds"
     xName      name of the x axis (default "step")
     xFormat    format of x (default "integer")
     domain     [first, last] x of the complete data; default: all that the chart was given so far
     zero       true if the y axis begins at 0 (not with log)
     height     of the plot in CSS pixels (default 220)
     onRange    called as onRange([first, last] or null, chart) soon after the visible range was changed by a person, to
                let the host fetch finer data for it and pass them to update()

   Mouse: drag selects a range, a double click shows everything again, Ctrl and the wheel zoom (the wheel alone after a
   click), Shift and the wheel pan. Keys on the focused plot: arrows move the read-out (with Shift by ten points), Home
   and End go to the ends, + and - zoom, PageUp and PageDown pan, E goes to the next event, Escape or 0 shows
   everything. */
(() => {
  "use strict";
  const { FORMATS, LEFT, RIGHT, colorsOf, lowerBound, nearest, numbers, paint, paintSign, smoothed, yLimits } =
    window.ChartPaint;
  const MOST_EVENTS_SHOWN = 6;
  const KEYS = "Arrow keys read values, plus and minus zoom, E goes to the next event, Escape shows everything.";

  function element(tag, properties = {}, parent = null) {
    const made = Object.assign(document.createElement(tag), properties);
    if (parent) parent.append(made);
    return made;
  }

  class LineChart {
    constructor(parent, options = {}) {
      this.element = parent;
      this.options = {};
      this._group = new Set([this]);
      this._hidden = new Set();
      this._seen = null; // first and last x of all data so far
      this._view = null; // the visible range, null for everything
      this._cursor = null; // x of the read-out
      this._drag = null;
      this._frame = 0;
      this._timer = 0;
      parent.classList.add("chart");
      this._title = element("h3", { className: "chart-title" }, parent);
      this._legend = element("div", { className: "chart-legend" }, parent);
      this._plot = element("div", { className: "chart-plot", tabIndex: 0 }, parent);
      this._plot.setAttribute("role", "group");
      this._plot.setAttribute("aria-roledescription", "chart");
      this._canvas = element("canvas", {}, this._plot);
      this._canvas.setAttribute("aria-hidden", "true");
      this._tip = element("div", { className: "chart-tip", hidden: true }, this._plot);
      this._tip.setAttribute("aria-hidden", "true");
      this._live = element("div", { className: "visually-hidden" }, parent);
      this._live.setAttribute("aria-live", "polite");
      this._listen();
      this.update(options);
    }

    get range() { return this._view && [...this._view]; }

    get title() { return this.options.title || ""; }

    update(options) {
      Object.assign(this.options, options);
      const { title, series = [], smoothing = 0, domain, height = 220 } = this.options;
      this._title.textContent = title || "";
      this._title.hidden = !title;
      this._plot.style.height = `${height}px`;
      this._series = series.map((each, index) => {
        const values = numbers(each.y);
        const color = each.color ?? index;
        return {
          name: String(each.name), xs: numbers(each.x), values, style: each.style || "line", color,
          low: each.low && numbers(each.low), high: each.high && numbers(each.high),
          smooth: smoothing > 0 && each.smooth !== false ? smoothed(values, Math.min(smoothing, 0.9999)) : null,
        };
      });
      this._events = [...(this.options.events || [])].sort((a, b) => a.x - b.x);
      const ends = this._series.flatMap(({ xs }) => (xs.length ? [xs[0], xs[xs.length - 1]] : []));
      if (ends.length) {
        const seen = this._seen || [Infinity, -Infinity];
        this._seen = [Math.min(seen[0], ...ends), Math.max(seen[1], ...ends)];
      }
      this._domain = domain || this._seen || [0, 1];
      this._drawLegend();
      this._plot.setAttribute("aria-label", `${title || "Chart"}. ${this.summary()} ${KEYS}`);
      this._draw();
    }

    /* Show the x of `range`, or everything for null, in this chart and those linked with it. */
    setRange(range) {
      for (const chart of this._group) chart._applyRange(range);
    }

    /* Show the x of `range`, as the charts do that this one joins. */
    follow(range) { this._applyRange(range, false); }

    /* Return the chart in words: for each series its extent, first, last, smallest and largest value. */
    summary() {
      const { xName = "step" } = this.options;
      const sentences = this._series.map((each) => {
        const found = [...each.values.keys()].filter((at) => !Number.isNaN(each.values[at]));
        if (!found.length) return `${each.name}: no values.`;
        const lows = each.low || each.values, highs = each.high || each.values;
        const least = found.reduce((best, at) => (lows[at] < lows[best] ? at : best));
        const most = found.reduce((best, at) => (highs[at] > highs[best] ? at : best));
        const [first, last] = [found[0], found[found.length - 1]];
        return `${each.name}: ${xName} ${this._x(each.xs[first])} to ${this._x(each.xs[last])}, `
          + `first ${this._y(each.values[first])}, last ${this._y(each.values[last])}, `
          + `smallest ${this._y(lows[least])} at ${this._x(each.xs[least])}, `
          + `largest ${this._y(highs[most])} at ${this._x(each.xs[most])}.`;
      });
      if (this._events.length) sentences.push(`Events: ${this._events.length}.`);
      return sentences.join(" ") || "No values.";
    }

    destroy() {
      cancelAnimationFrame(this._frame);
      clearTimeout(this._timer);
      this._resize.disconnect();
      this._stop.abort();
      this._group.delete(this);
      this.element.replaceChildren();
    }

    _x(value) { return FORMATS[this.options.xFormat || "integer"](value); }

    _y(value) { return Number.isNaN(value) ? "no number" : FORMATS[this.options.format || "number"](value); }

    _shown() { return this._series.filter(({ name }) => !this._hidden.has(name)); }

    _limits() {
      const [first, last] = this._view || this._domain;
      return first < last ? [first, last] : [first - 0.5, first + 0.5];
    }

    _applyRange(range, isAsked = true) {
      const [first, last] = this._domain;
      let view = null;
      if (range) {
        const least = Math.max((last - first) / 1e6, Number.MIN_VALUE);
        const low = Math.max(first, Math.min(range[0], last - least));
        const high = Math.min(last, Math.max(range[1], low + least));
        if (low > first || high < last) view = [low, high];
      }
      const isSame = String(view) === String(this._view);
      this._view = view;
      this._draw();
      if (isSame || !isAsked || !this.options.onRange) return;
      clearTimeout(this._timer);
      this._timer = setTimeout(() => this.options.onRange(this.range, this), 150);
    }

    _listen() {
      this._stop = new AbortController();
      const listen = (target, kind, handler, more = {}) =>
        target.addEventListener(kind, handler, { signal: this._stop.signal, ...more });
      this._resize = new ResizeObserver(() => this._draw());
      this._resize.observe(this._plot);
      listen(matchMedia("(prefers-color-scheme: dark)"), "change", () => this.redraw());
      const plot = this._plot;
      listen(plot, "pointerdown", (event) => {
        if (event.button !== 0) return;
        plot.setPointerCapture(event.pointerId);
        this._drag = { from: event.offsetX, to: event.offsetX };
      });
      listen(plot, "pointermove", (event) => {
        if (this._drag) this._drag.to = event.offsetX;
        this._point(this._xAt(event.offsetX));
      });
      listen(plot, "pointerup", () => {
        const drag = this._drag;
        this._drag = null;
        if (drag && Math.abs(drag.to - drag.from) > 5) {
          this.setRange([drag.from, drag.to].map((at) => this._xAt(at)).sort((a, b) => a - b));
        } else this._draw();
      });
      listen(plot, "pointercancel", () => { this._drag = null; this._point(null); });
      listen(plot, "pointerleave", () => { if (!this._drag) this._point(null); });
      listen(plot, "blur", () => this._point(null));
      listen(plot, "dblclick", () => this.setRange(null));
      listen(plot, "wheel", (event) => this._wheel(event), { passive: false });
      listen(plot, "keydown", (event) => this._key(event));
    }

    _wheel(event) {
      const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (isSideways ? !this._view : !(event.ctrlKey || event.metaKey || document.activeElement === this._plot)) return;
      event.preventDefault();
      const turned = (event.deltaY || event.deltaX) * (event.deltaMode === 1 ? 30 : 1);
      if (isSideways) this._pan((event.deltaX || event.deltaY) / this._width());
      else this._zoom(Math.exp(Math.max(-300, Math.min(300, turned)) / 400), this._xAt(event.offsetX));
    }

    _key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const [first, last] = this._limits();
      const middle = this._cursor ?? (first + last) / 2;
      const points = event.shiftKey ? 10 : 1;
      const actions = {
        ArrowLeft: () => this._step(-points), ArrowRight: () => this._step(points),
        Home: () => this._read(first), End: () => this._read(last),
        "+": () => this._zoom(0.5, middle), "=": () => this._zoom(0.5, middle), "-": () => this._zoom(2, middle),
        PageUp: () => this._pan(-0.5), PageDown: () => this._pan(0.5),
        e: () => this._nextEvent(), E: () => this._nextEvent(),
        0: () => this.setRange(null), Escape: () => this.setRange(null),
      };
      const action = actions[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    }

    _zoom(factor, center) {
      const [first, last] = this._limits();
      this.setRange([center - (center - first) * factor, center + (last - center) * factor]);
    }

    _pan(share) {
      const [first, last] = this._limits();
      const [least, most] = this._domain;
      const by = Math.max(least - first, Math.min(most - last, (last - first) * share));
      if (this._view) this.setRange([first + by, last + by]);
    }

    _step(points) {
      const [first, last] = this._limits();
      const xs = this._shown().reduce((longest, each) => (each.xs.length > longest.length ? each.xs : longest), []);
      if (!xs.length) return;
      const at = this._cursor === null ? lowerBound(xs, points > 0 ? first : last) : nearest(xs, this._cursor) + points;
      this._read(xs[Math.max(0, Math.min(xs.length - 1, at))]);
    }

    _nextEvent() {
      if (!this._events.length) return;
      const next = this._events.find(({ x }) => x > (this._cursor ?? -Infinity)) || this._events[0];
      const [first, last] = this._limits();
      if (next.x < first || next.x > last) this.setRange([next.x - (last - first) / 2, next.x + (last - first) / 2]);
      this._read(next.x);
    }

    /* Put the read-out at `x`, and let screen readers speak it. */
    _read(x) {
      this._point(x);
      this._live.textContent = this._readOut(x).map(([name, value]) => `${name} ${value}`).join(", ");
    }

    _point(x) {
      for (const chart of this._group) {
        chart._cursor = x;
        chart._isPointed = chart === this && x !== null;
        chart._draw();
      }
    }

    /* Return rows [name, value, series or event] for the points and events nearest to `x`. */
    _readOut(x) {
      const rows = [];
      const points = this._shown().filter(({ xs }) => xs.length).map((each) => [each, nearest(each.xs, x)]);
      const step = points.map(([each, at]) => each.xs[at]).sort((a, b) => Math.abs(a - x) - Math.abs(b - x))[0];
      rows.push([this.options.xName || "step", this._x(step ?? x)]);
      const [first, last] = this._limits();
      for (const [each, at] of points) {
        const far = each.xs[at] !== step;
        if (far && (each.style === "line" || Math.abs(each.xs[at] - x) > (last - first) / 40)) continue;
        let text = this._y((each.smooth || each.values)[at]);
        if (each.smooth) text += ` (${this._y(each.values[at])})`;
        if (each.low && each.high && each.low[at] < each.high[at]) {
          text += ` [${this._y(each.low[at])} to ${this._y(each.high[at])}]`;
        }
        rows.push([each.name, text + (far ? ` at ${this._x(each.xs[at])}` : ""), each]);
      }
      const near = ((last - first) / this._width()) * 6;
      const events = this._events.filter((event) => Math.abs(event.x - x) <= near);
      for (const event of events.slice(0, MOST_EVENTS_SHOWN)) rows.push([`${this._x(event.x)}:`, event.text, event]);
      if (events.length > MOST_EVENTS_SHOWN) rows.push(["", `and ${events.length - MOST_EVENTS_SHOWN} more`]);
      return rows;
    }

    /* Draw again with the present colours, after another theme was chosen. */
    redraw() {
      this._drawLegend();
      this._draw();
    }

    /* Draw at once and not in the next frame, for a printer. */
    paintNow() {
      cancelAnimationFrame(this._frame);
      this._paint();
    }

    _width() { return Math.max(1, this._plot.clientWidth - LEFT - RIGHT); }

    _xAt(offset) {
      const [first, last] = this._limits();
      return first + Math.max(0, Math.min(1, (offset - LEFT) / this._width())) * (last - first);
    }

    _drawLegend() {
      const colors = colorsOf(this.element);
      const state = JSON.stringify([this._series.map(({ name, color, style }) => [name, color, style]), colors]);
      if (state === this._legendState) return; // so that a button keeps the focus when data arrive
      this._legendState = state;
      const buttons = this._series.map((each) => {
        const button = element("button", { type: "button", title: "Show or hide this line" });
        const tell = () => button.setAttribute("aria-pressed", String(!this._hidden.has(each.name)));
        paintSign(element("canvas", {}, button), each, colors);
        element("span", { textContent: each.name }, button);
        button.onclick = () => {
          if (!this._hidden.delete(each.name)) this._hidden.add(each.name);
          tell();
          this._draw();
        };
        tell();
        return button;
      });
      this._legend.replaceChildren(...buttons);
      this._legend.hidden = buttons.length < 2;
    }

    _draw() {
      if (!this._frame) this._frame = requestAnimationFrame(() => this._paint());
    }

    _paint() {
      this._frame = 0;
      const [width, height] = [this._plot.clientWidth, this._plot.clientHeight];
      if (!width || !height) return;
      const { log = false, xName = "step", xFormat = "integer" } = this.options;
      const series = this._shown(), range = this._limits();
      const limits = yLimits(series, range, this.options);
      paint(this._canvas, {
        width, height, range, limits, log, series, xName, events: this._events, cursor: this._cursor, drag: this._drag,
        isWhole: xFormat === "integer",
        xText: (value) => this._x(value), yText: (value) => this._y(value),
      }, colorsOf(this.element));
      this._showTip(width, range);
    }

    _showTip(width, range) {
      this._tip.hidden = !this._isPointed || this._cursor < range[0] || this._cursor > range[1];
      if (this._tip.hidden) return;
      const table = element("table"), colors = colorsOf(this.element);
      for (const [name, value, about] of this._readOut(this._cursor)) {
        const row = element("tr", {}, table);
        const cell = element("td", {}, row);
        if (about?.color !== undefined) {
          element("span", { textContent: "\u25a0 " }, cell).style.color = colors.series(about.color);
        }
        cell.append(name);
        const className = about?.text ? `chart-event-${about.level || "info"}` : "";
        element("td", { textContent: value, className }, row);
      }
      this._tip.replaceChildren(table);
      const at = LEFT + ((this._cursor - range[0]) / (range[1] - range[0])) * this._width();
      const isRight = at > width / 2;
      this._tip.style.left = isRight ? "auto" : `${at + 12}px`;
      this._tip.style.right = isRight ? `${width - at + 12}px` : "auto";
    }
  }

  /* Let the charts show the same range of x, and the read-out of one mark the same x in all. */
  function linkCharts(charts) {
    const group = new Set(charts);
    for (const chart of charts) chart._group = group;
  }

  Object.assign(window, { LineChart, linkCharts });
})();
