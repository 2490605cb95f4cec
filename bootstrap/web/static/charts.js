/* Line charts for the live page and the report. uPlot paints axes, lines and bands; this adds marks of events, the
   keyboard, words for screen readers, a read-out, smoothing and ranges in common. theme.css has the colours. Load
   uplot.js first.

   const chart = new LineChart(element, options);   chart.update(options);   chart.setRange([10, 90] or null);
   linkCharts([chart, other]);                      chart.range;  chart.summary();  chart.destroy();

   Options, all of them optional; update() keeps those that it is not given:
     title      text above the plot
     series     list of {name, x, y, low, high, style, color, smooth}:
                x      ascending steps
                y      numbers; null, NaN and infinite values are gaps ("NaN" too)
                low, high   smallest and largest value of the steps that a point stands for, drawn as a band
                style  "line" (default), "both" (line and dots) or "points"
                color  number of the colour from 0; default: the position in the list
                smooth false exempts the series from smoothing
     events     list of {x, text, level, color}; level is "info" (default), "good", "warning" or "error"; color is
                the number of the colour of the run that it belongs to, default: that of the level
     log        true for a logarithmic y axis; values that are not positive are gaps
     smoothing  weight of the exponential mean over the points, from 0 (none) to less than 1
     format     how values are written: "number" (default), "bytes", "percent" (of 1), "seconds"
     domain     [first, last] step of the complete data; default: all that the chart was given so far
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
  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
  const COLORS = 8, TOP = 16, RIGHT = 26, LEFT = 56, BOTTOM = 20, LABEL = 14;
  const MOST_EVENTS_SHOWN = 6;
  const KEYS = "Arrow keys read values, plus and minus zoom, E goes to the next event, Escape shows everything.";
  const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((factor) => factor * 10 ** power)).flat();
  const MOUSE = ["mousedown", "mouseup", "click", "dblclick", "mousemove", "mouseleave", "mouseenter"];

  const trimmed = (value, digits) => String(Number(value.toPrecision(digits)));
  function scaled(value, units, digits, base = 1000) {
    let unit = 0;
    for (; Math.abs(value) >= base && unit < units.length - 1; unit += 1) value /= base;
    return trimmed(value, digits) + units[unit];
  }
  const FORMATS = {
    number(value) {
      const size = Math.abs(value);
      if (size >= 1e15 || (size > 0 && size < 1e-4)) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
      return size >= 1e4 ? scaled(value, ["", "k", "M", "G", "T"], 4) : trimmed(value, 5);
    },
    integer: (value) => (Number.isInteger(value) ? value.toLocaleString("en-US") : FORMATS.number(value)),
    bytes: (value) => scaled(value, [" B", " KiB", " MiB", " GiB", " TiB"], 4, 1024),
    percent: (value) => `${trimmed(value * 100, 4)} %`,
    seconds(value) {
      if (value !== 0 && Math.abs(value) < 0.1) return `${trimmed(value * 1000, 4)} ms`;
      if (Math.abs(value) < 120) return `${trimmed(value, 4)} s`;
      return Math.abs(value) < 7200 ? `${trimmed(value / 60, 3)} min` : `${trimmed(value / 3600, 4)} h`;
    },
  };

  const numbers = (list) => Array.from(list || [], (value) => (
    value !== null && value !== undefined && Number.isFinite(Number(value)) ? Number(value) : null));

  /* Return the exponential mean of the points up to each, in which the first points do not weigh more than others. */
  function smoothed(values, weight) {
    let mean = 0, total = 0;
    return values.map((value) => {
      if (value === null) return null;
      mean = mean * weight + value * (1 - weight);
      total = total * weight + (1 - weight);
      return mean / total;
    });
  }

  /* Return the first index whose value is at least `value`. */
  function lowerBound(sorted, value) {
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < value) low = middle + 1; else high = middle;
    }
    return low;
  }

  function nearest(xs, x) {
    const at = lowerBound(xs, x);
    return at > 0 && (at === xs.length || x - xs[at - 1] <= xs[at] - x) ? at - 1 : at;
  }

  /* Return the places of the points between two gaps, of which no line is made. */
  function lonePoints(column) {
    const there = [...column.keys()].filter((at) => column[at] !== undefined);
    const isGap = (at) => (column[at] ?? null) === null;
    return there.filter((at, place) => !isGap(at) && isGap(there[place - 1]) && isGap(there[place + 1]));
  }

  function linearTicks(low, high, count) {
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= rough * 0.999);
    const first = Math.ceil(low / step - 1e-9) + 0; // no -0
    return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, at) => (first + at) * step);
  }

  function logTicks(low, high, count) {
    const decades = Math.log10(high / low);
    if (decades < 1) return linearTicks(low, high, count);
    const factors = decades < count / 3 ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil(decades / count));
    const ticks = [];
    for (let n = Math.floor(Math.log10(low)); n <= Math.log10(high); n += every) {
      for (const factor of factors) ticks.push(factor * 10 ** n);
    }
    return ticks.filter((tick) => tick >= low && tick <= high);
  }

  /* Return the ends of the y axis for values from `low` to `high`, null without any, with a margin. */
  function yEnds(low, high, { log = false, zero = false }) {
    if (low === null) return log ? [0.1, 1] : [0, 1];
    if (log) {
      const margin = Math.max((high / low) ** 0.05, 1.02);
      return [low / margin, high * margin];
    }
    if (zero) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
    const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [zero && low === 0 ? 0 : low - margin, high + margin];
  }

  const seriesColor = (number) => `--series-${(number % COLORS) + 1}`;
  const dashOf = (number) => DASHES[Math.floor(number / COLORS) % DASHES.length];

  function element(tag, properties = {}, parent = null) {
    const made = Object.assign(document.createElement(tag), properties);
    if (parent) parent.append(made);
    return made;
  }

  class LineChart {
    constructor(parent, options = {}) {
      this.element = parent;
      this.options = {};
      this._style = getComputedStyle(parent);
      this._group = new Set([this]);
      this._hidden = new Set();
      this._seen = null; // first and last x of all data so far
      this._view = null; // the visible range, null for everything
      this._cursor = null; // x of the read-out
      this._drag = null; // the x from and to which a person drags
      this._uplot = null; // there once the plot has a size
      this._frame = 0;
      this._timer = 0;
      parent.classList.add("chart");
      this._title = element("h3", { className: "chart-title" }, parent);
      this._legend = element("div", { className: "chart-legend" }, parent);
      this._plot = element("div", { className: "chart-plot", tabIndex: 0 }, parent);
      this._plot.setAttribute("role", "group");
      this._plot.setAttribute("aria-roledescription", "chart");
      this._canvas = element("div", { className: "chart-canvas" }, this._plot);
      this._canvas.setAttribute("aria-hidden", "true");
      this._tip = element("div", { className: "chart-tip", hidden: true }, this._plot);
      this._tip.setAttribute("aria-hidden", "true");
      this._live = element("div", { className: "visually-hidden" }, parent);
      this._live.setAttribute("aria-live", "polite");
      this._listen();
      this.update(options);
    }

    get range() { return this._view && [...this._view]; }

    update(options) {
      Object.assign(this.options, options);
      const { title, series = [], smoothing = 0, domain, height = 220 } = this.options;
      this._title.textContent = title || "";
      this._title.hidden = !title;
      this._plot.style.height = `${height}px`;
      this._series = series.map((each, index) => {
        const values = numbers(each.y);
        return {
          name: String(each.name), xs: numbers(each.x), values, style: each.style || "line",
          color: each.color ?? index, low: each.low && numbers(each.low), high: each.high && numbers(each.high),
          smooth: smoothing > 0 && each.smooth !== false ? smoothed(values, Math.min(smoothing, 0.9999)) : null,
        };
      });
      this._events = [...(this.options.events || [])].sort((a, b) => a.x - b.x);
      const ends = this._series.flatMap(({ xs }) => (xs.length ? [xs[0], xs[xs.length - 1]] : []));
      if (ends.length) this._seen = [Math.min(...ends, ...(this._seen || [])), Math.max(...ends, ...(this._seen || []))];
      this._domain = domain || this._seen || [0, 1];
      this._drawLegend();
      this._plot.setAttribute("aria-label", `${title || "Chart"}. ${this.summary()} ${KEYS}`);
      this.redraw();
    }

    /* Show the x of `range`, or everything for null, in this chart and those linked with it. */
    setRange(range) {
      for (const chart of this._group) chart._applyRange(range);
    }

    /* Show the x of `range`, as the charts do that this one joins. */
    follow(range) { this._applyRange(range, false); }

    /* Return the chart in words: for each series its extent, first, last, smallest and largest value. */
    summary() {
      const sentences = this._series.map((each) => {
        const found = [...each.values.keys()].filter((at) => each.values[at] !== null);
        if (!found.length) return `${each.name}: no values.`;
        const lows = each.low || each.values, highs = each.high || each.values;
        const least = found.reduce((best, at) => (lows[at] < lows[best] ? at : best));
        const most = found.reduce((best, at) => (highs[at] > highs[best] ? at : best));
        const [first, last] = [found[0], found[found.length - 1]];
        return `${each.name}: step ${this._x(each.xs[first])} to ${this._x(each.xs[last])}, `
          + `first ${this._y(each.values[first])}, last ${this._y(each.values[last])}, `
          + `smallest ${this._y(lows[least])} at ${this._x(each.xs[least])}, `
          + `largest ${this._y(highs[most])} at ${this._x(each.xs[most])}.`;
      });
      if (this._events.length) sentences.push(`Events: ${this._events.length}.`);
      return sentences.join(" ") || "No values.";
    }

    /* Draw again with the present colours, after another theme was chosen. */
    redraw() {
      this._isNew = true;
      this._draw();
    }

    /* Draw at once and not in the next frame, for a printer. */
    paintNow() {
      cancelAnimationFrame(this._frame);
      this._isStale = true;
      this._paint();
    }

    destroy() {
      cancelAnimationFrame(this._frame);
      clearTimeout(this._timer);
      this._resize.disconnect();
      this._stop.abort();
      this._uplot?.destroy();
      this._group.delete(this);
      this.element.replaceChildren();
    }

    _x(value) { return FORMATS.integer(value); }

    _y(value) { return value === null ? "no number" : FORMATS[this.options.format || "number"](value); }

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
      const { signal } = this._stop, plot = this._plot;
      const listen = (kind, handler, more = {}) =>
        plot.addEventListener(kind, (event) => this._uplot && handler(event), { signal, ...more });
      this._resize = new ResizeObserver(() => this._draw());
      this._resize.observe(plot);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw(), { signal });
      listen("pointerdown", (event) => {
        if (event.button !== 0) return;
        plot.setPointerCapture(event.pointerId);
        this._drag = [this._xAt(event), this._xAt(event)];
      });
      listen("pointermove", (event) => {
        if (this._drag) this._drag[1] = this._xAt(event);
        this._point(this._xAt(event));
      });
      listen("pointerup", () => {
        const range = this._drag?.sort((a, b) => a - b);
        this._drag = null;
        const [from, to] = (range || [0, 0]).map((x) => this._uplot.valToPos(x, "x"));
        if (to - from > 5) this.setRange(range);
        else this._draw(false);
      });
      listen("pointercancel", () => { this._drag = null; this._point(null); });
      listen("pointerleave", () => { if (!this._drag) this._point(null); });
      listen("blur", () => this._point(null));
      listen("dblclick", () => this.setRange(null));
      listen("wheel", (event) => this._wheel(event), { passive: false });
      listen("keydown", (event) => this._key(event));
    }

    _wheel(event) {
      const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (isSideways ? !this._view : !(event.ctrlKey || event.metaKey || document.activeElement === this._plot)) return;
      event.preventDefault();
      const turned = (event.deltaY || event.deltaX) * (event.deltaMode === 1 ? 30 : 1);
      if (isSideways) this._pan((event.deltaX || event.deltaY) / this._width());
      else this._zoom(Math.exp(Math.max(-300, Math.min(300, turned)) / 400), this._xAt(event));
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
        chart._draw(false);
      }
    }

    /* Return rows [name, value, series or event] for the points and events nearest to `x`. */
    _readOut(x) {
      const rows = [];
      const points = this._shown().filter(({ xs }) => xs.length).map((each) => [each, nearest(each.xs, x)]);
      const step = points.map(([each, at]) => each.xs[at]).sort((a, b) => Math.abs(a - x) - Math.abs(b - x))[0];
      rows.push(["step", this._x(step ?? x)]);
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

    _width() { return Math.max(1, this._uplot.over.clientWidth); }

    _xAt({ clientX }) {
      const [first, last] = this._limits(), { left } = this._uplot.over.getBoundingClientRect();
      return first + Math.max(0, Math.min(1, (clientX - left) / this._width())) * (last - first);
    }

    _drawLegend() {
      const state = JSON.stringify(this._series.map(({ name, color, style }) => [name, color, style]));
      if (state === this._legendState) return; // so that a button keeps the focus when data arrive
      this._legendState = state;
      const buttons = this._series.map(({ name, color, style }) => {
        const button = element("button", { type: "button", title: "Show or hide this line" });
        const tell = () => button.setAttribute("aria-pressed", String(!this._hidden.has(name)));
        const ink = `var(${seriesColor(color)})`, dash = dashOf(color).join(" ");
        const line = `<path d="M1 5H23" stroke="${ink}" stroke-width="2.5" stroke-dasharray="${dash}"/>`;
        const dot = `<circle cx="12" cy="5" r="3.5" fill="${ink}"/>`;
        button.innerHTML = `<svg viewBox="0 0 24 10">${style === "points" ? "" : line}${style === "line" ? "" : dot}</svg>`;
        element("span", { textContent: name }, button);
        button.onclick = () => {
          if (!this._hidden.delete(name)) this._hidden.add(name);
          tell();
          this.redraw();
        };
        tell();
        return button;
      });
      this._legend.replaceChildren(...buttons);
      this._legend.hidden = buttons.length < 2;
    }

    /* Draw in the next frame: all of it, or the read-out and the selection only. */
    _draw(isAll = true) {
      this._isStale ||= isAll;
      if (!this._frame) this._frame = requestAnimationFrame(() => this._paint());
    }

    _paint() {
      this._frame = 0;
      const { clientWidth: width, clientHeight: height } = this._plot;
      if (!width || !height) return;
      const data = this._isNew ? this._prepare(width, height) : null;
      const plot = this._uplot, [first, last] = this._limits();
      if (this._isStale) {
        plot.batch(() => {
          if (plot.width !== width || plot.height !== height) plot.setSize({ width, height });
          if (data) plot.setData(data, false);
          plot.setScale("x", { min: first, max: last });
        });
      }
      this._isNew = this._isStale = false;
      const isInside = this._cursor !== null && first <= this._cursor && this._cursor <= last;
      const at = isInside ? plot.valToPos(this._cursor, "x") : -10;
      plot.setCursor({ left: at, top: at }, false);
      const [from, to] = [...(this._drag || [first, first])].sort((a, b) => a - b).map((x) => plot.valToPos(x, "x"));
      plot.setSelect({ left: from, width: to - from, top: 0, height: plot.over.clientHeight }, false);
      this._showTip(this._isPointed && isInside, plot.over.offsetLeft + at, width);
    }

    /* Return the data for uPlot, whose plot is made anew if other kinds of series are to be shown. */
    _prepare(width, height) {
      const { log = false } = this.options;
      const shown = this._shown().map((each) => this._layers(each, log));
      this._layersShown = shown.flat();
      const shape = JSON.stringify([log, this._layersShown.map(({ key }) => key)]);
      const tables = shown.map((layers) => [layers[0].each.xs, ...layers.map(({ values }) => values)]);
      const data = tables.length ? uPlot.join(tables) : [[]];
      this._lone = data.map((column, at) => (at > 0 ? lonePoints(column) : []));
      if (shape !== this._shape) {
        this._shape = shape;
        this._uplot?.destroy();
        this._uplot = new uPlot(this._plan(width, height, log), data, this._canvas);
      }
      return data;
    }

    /* Return what is painted of a series, in this order: its band, its values under the smoothed ones, its line. */
    _layers(each, log) {
      const stroke = () => this._color(seriesColor(each.color));
      const gaps = (values) => (log ? values.map((value) => (value > 0 ? value : null)) : values);
      const layer = (kind, values, series) => (
        { each, key: [kind, each.color, each.style], kind, values, series: { pxAlign: 0, points: { show: false }, ...series } });
      const found = [];
      if (each.low && each.high) {
        const high = gaps(each.high);
        found.push(layer("high", high, { width: 0, alpha: 0.2, fill: stroke }));
        found.push(layer("low", each.low.map((value, at) => (high[at] === null ? null : value)), { width: 0 }));
      }
      if (each.smooth) found.push(layer("raw", gaps(each.values), { width: 1, alpha: 0.35, stroke }));
      const dots = { show: each.style !== "line", size: 6.4, width: 0, fill: stroke };
      found.push(layer("line", gaps(each.smooth || each.values), {
        width: 1.8, stroke, dash: dashOf(each.color).map((length) => length * devicePixelRatio),
        paths: each.style === "points" ? () => null : undefined,
        points: { ...dots, filter: (_, at, isShown) => (isShown ? null : this._lone[at]) },
      }));
      return found;
    }

    _color(name) { return this._style.getPropertyValue(name).trim(); }

    /* Return the options of uPlot. */
    _plan(width, height, log) {
      const layers = this._layersShown;
      return {
        width, height, padding: [TOP, RIGHT, 0, 0], legend: { show: false },
        series: [{}, ...layers.map(({ series }) => series)],
        bands: layers.flatMap(({ kind }, at) => (kind === "high" ? [{ series: [at + 1, at + 2] }] : [])),
        scales: {
          x: { time: false, auto: false, range: () => this._limits() },
          y: { distr: log ? 3 : 1, range: (_, low, high) => yEnds(low, high, this.options) },
        },
        axes: this._axes(Math.max(2, (height - TOP - BOTTOM - LABEL) / 38), log),
        cursor: {
          y: false, bind: Object.fromEntries(MOUSE.map((name) => [name, () => null])),
          points: { size: 8, fill: (_, at) => this._color(seriesColor(layers[at - 1].each.color)) },
          dataIdx: (plot, at, _, x) => (at > 0 && layers[at - 1].kind === "line" ? this._nearIndex(plot, at, x) : null),
        },
        hooks: { drawAxes: [(plot) => this._paintEvents(plot)] },
      };
    }

    /* Return the options of the axes for about `count` ticks on the vertical one. */
    _axes(count, log) {
      const soft = () => this._color("--soft"), line = () => this._color("--line");
      const look = { stroke: soft, font: `11px ${this._style.fontFamily}` };
      const ticksOf = (low, high, most) => {
        if (log) return logTicks(low, high, most);
        const thousands = Math.floor(Math.log2(Math.max(Math.abs(low), Math.abs(high), 1)) / 10);
        const unit = this.options.format === "bytes" ? 1024 ** thousands : 1; // ticks are round in what they show
        return linearTicks(low / unit, high / unit, most).map((tick) => tick * unit);
      };
      return [{
        ...look, size: BOTTOM, gap: 2, space: 70, incrs: WHOLE, values: (_, steps) => steps.map(this._x),
        label: "step", labelSize: LABEL, labelFont: look.font,
        grid: { show: false }, ticks: { size: 4, width: 1, stroke: line }, border: { show: true, width: 1, stroke: soft },
      }, {
        ...look, size: LEFT, gap: 6, grid: { width: 1, stroke: line }, ticks: { show: false },
        filter: (_, ticks) => ticks, values: (_, ticks) => ticks.map((tick) => this._y(tick)),
        splits: (_, __, low, high) => {
          const few = ticksOf(low, high, count);
          return few.length > 1 ? few : ticksOf(low, high, 2 * count); // one tick alone shows no scale
        },
      }];
    }

    /* Return the place in the data of the point of a line that is near `x`, null without one. */
    _nearIndex(plot, at, x) {
      const { xs } = this._layersShown[at - 1].each;
      const found = xs[nearest(xs, x)];
      const isNear = Math.abs(plot.valToPos(found, "x") - plot.valToPos(x, "x")) < 12;
      return isNear ? plot.valToIdx(found) : null;
    }

    /* Paint the marks of events: a dashed line, and above it a sign whose form tells the level too. */
    _paintEvents({ ctx, bbox, scales, valToPos }) {
      const seen = new Set();
      ctx.save();
      ctx.scale(devicePixelRatio, devicePixelRatio);
      for (const { x, level = "info", color } of this._events) {
        const at = Math.round(bbox.left / devicePixelRatio + valToPos(x, "x"));
        const ink = this._color(color !== undefined ? seriesColor(color) : level === "info" ? "--soft" : `--${level}`);
        if (x < scales.x.min || x > scales.x.max || seen.has(`${at} ${level} ${ink}`)) continue;
        seen.add(`${at} ${level} ${ink}`);
        Object.assign(ctx, { strokeStyle: ink, fillStyle: ink, lineWidth: 1, globalAlpha: 0.7 });
        ctx.setLineDash([2, 3]);
        ctx.stroke(new Path2D(`M${at + 0.5} ${TOP}v${bbox.height / devicePixelRatio}`));
        ctx.setLineDash([]);
        Object.assign(ctx, { lineWidth: 2, globalAlpha: 1 });
        if (level === "error") ctx.stroke(new Path2D(`M${at - 3.5} 5l8 8m0 -8l-8 8`));
        else if (level === "warning") ctx.fill(new Path2D(`M${at - 4.5} 5h10l-5 9z`));
        else if (level === "good") ctx.fillRect(at - 3, 6, 7, 7);
        else ctx.fill(new Path2D(`M${at - 2.5} 9.5a3 3 0 1 0 6 0a3 3 0 1 0 -6 0`));
      }
      ctx.restore();
    }

    _showTip(isShown, at, width) {
      this._tip.hidden = !isShown;
      if (!isShown) return;
      const table = element("table");
      for (const [name, value, about] of this._readOut(this._cursor)) {
        const row = element("tr", {}, table);
        const cell = element("td", {}, row);
        if (about?.color !== undefined) {
          element("span", { textContent: "\u25a0 " }, cell).style.color = `var(${seriesColor(about.color)})`;
        }
        cell.append(name);
        const className = about?.text ? `chart-event-${about.level || "info"}` : "";
        element("td", { textContent: value, className }, row);
      }
      this._tip.replaceChildren(table);
      const wide = this._tip.offsetWidth, beside = at > width / 2 ? at - 12 - wide : at + 12;
      this._tip.style.left = `${Math.max(0, Math.min(width - wide, beside))}px`;
    }
  }

  /* Let the charts show the same range of x, and the read-out of one mark the same x in all. */
  function linkCharts(charts) {
    const group = new Set(charts);
    for (const chart of charts) chart._group = group;
  }

  LineChart.FORMATS = FORMATS;
  Object.assign(window, { LineChart, linkCharts });
})();
