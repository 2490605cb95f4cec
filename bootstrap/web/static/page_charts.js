/* The curves of the live page: one chart for each metric, all runs in it. */
import { Curves, Unreachable } from "./page_data.js";
import { byId, bytes, make } from "./page_format.js";

const { LineChart, linkCharts } = window;
const OF_PAIRS = ["training", "held-out"];
const CHARTS = [
  { names: ["loss"], title: "Loss", isLarge: true, canLog: true, smooth: true },
  { names: ["eval_loss"], title: "Evaluation loss", style: "both", canLog: true },
  { names: ["eval_bits_per_byte"], title: "Bits per byte", style: "both", canLog: true },
  { names: ["reward_margin", "eval_reward_margin"], title: "Reward margin", smooth: true, labels: OF_PAIRS },
  { names: ["reward_accuracy", "eval_reward_accuracy"], title: "Pairs in the right order", format: "percent", smooth: true, labels: OF_PAIRS },
  { names: ["eval_reward_chosen", "eval_reward_rejected"], title: "Rewards of held-out replies", style: "both", labels: ["chosen", "rejected"] },
  { names: ["grad_norm"], title: "Gradient norm", canLog: true, smooth: true },
  { names: ["lr"], title: "Learning rate" },
  { names: ["tokens_per_second"], title: "Tokens per second", smooth: true, zero: true, noBand: true },
  { names: ["data_wait_seconds"], title: "Wait for data", format: "seconds", smooth: true, zero: true },
  { names: ["memory_bytes"], title: "Memory", format: "bytes", zero: true, hasLimit: true },
  { names: ["mfu"], title: "Model FLOPs utilization", format: "percent", smooth: true, zero: true },
];
const MORE = {
  goodput: { title: "Goodput", format: "percent", zero: true },
  bytes_read: { title: "Bytes read", format: "bytes", zero: true },
  compile_seconds: { title: "Compilation", format: "seconds", zero: true },
};
const HIDDEN = new Set(["tokens", "step"]);
const MOST_MARKS = 400;
const MOST_DOTS = 60;

export class ChartBoard {
  /* `onRange(range or null)` is called when a person zooms. */
  constructor(onRange) {
    this._charts = new Map();
    this._onRange = onRange;
    this._isLoading = false;
    this._isStale = false;
    this._runs = [];
    this.range = null;
    this.options = { smoothing: 0.6, log: false, marks: true };
    byId("more").addEventListener("toggle", () => this.load());
    this._observer = new ResizeObserver(() => {
      clearTimeout(this._timer);
      this._timer = setTimeout(() => this.load(), 400);
    });
    this._observer.observe(byId("charts"));
  }

  /* Take the runs to show: {number, name, color, summary, notes, rejections}. */
  setRuns(runs) {
    const known = new Map(this._runs.map((run) => [run.number, run]));
    this._runs = runs.map((run) => {
      const before = known.get(run.number);
      const curves = before && before.epoch === run.epoch ? before : { all: new Curves(run.number), detail: null };
      return { ...run, all: curves.all, detail: curves.detail };
    });
    this._build();
    this.load();
  }

  setOptions(options) {
    Object.assign(this.options, options);
    this.draw();
  }

  setRange(range) {
    [...this._charts.values()][0]?.chart.setRange(range);
  }

  redraw() {
    for (const { chart } of this._charts.values()) chart.redraw();
  }

  /* Fetch what is new, one request for each run at a time, and draw. */
  async load() {
    if (this._isLoading) { this._isStale = true; return; }
    this._isLoading = true;
    try {
      do {
        this._isStale = false;
        const width = this._width();
        await Promise.all(this._runs.map(async (run) => {
          const names = this._names(run);
          await run.all.load(names, width);
          if (run.detail) await run.detail.load(names, width);
        }));
        this.draw();
      } while (this._isStale);
    } catch (error) {
      if (!(error instanceof Unreachable)) console.warn(error);
    } finally {
      this._isLoading = false;
    }
  }

  draw() {
    const ends = this._runs.flatMap(({ summary, all }) => (summary.first_step === null ? []
      : [summary.first_step, summary.step, ...firstSteps(all.points)]));
    const domain = ends.length ? [Math.min(...ends), Math.max(...ends, Math.min(...ends) + 1)] : undefined;
    const marks = this.options.marks ? this._marks() : [];
    const unit = this._runs.some(({ summary }) => summary.metrics.includes("reward_margin")) ? "pair" : "token";
    for (const entry of this._charts.values()) {
      const { chart, names, spec } = entry;
      if (spec.isLarge) chart.update({ title: `${spec.title}, nats per ${unit}` });
      const series = this._runs.flatMap((run) => names.flatMap((name, place) => this._series(run, name, spec, place)));
      const limits = spec.hasLimit ? this._memoryLimits() : [];
      if (domain) series.push(...limits.map((limit) => limitLine(limit, domain)));
      if (spec.hasLimit) chart.update({ title: [spec.title, ...limits.map((limit) => `limit ${bytes(limit)}`)].join(", ") });
      chart.update({
        series, domain, events: marks, log: Boolean(spec.canLog && this.options.log),
        smoothing: spec.smooth ? this.options.smoothing ** this._fineness() : 0,
      });
      if (entry.isNew && domain) chart.follow(this.range);
      entry.isNew = entry.isNew && !domain;
    }
  }

  _width() {
    const widest = Math.max(...[...this._charts.values()].map(({ chart }) => chart.element.clientWidth), 300);
    return Math.min(2000, Math.round(widest));
  }

  /* Points of a zoomed curve stand for fewer steps: the smoothing reaches over as many steps as before. */
  _fineness() {
    const run = this._runs.find(({ detail }) => detail && Object.keys(detail.points).length);
    return run ? run.detail.bucket / Math.max(run.all.bucket, run.detail.bucket) : 1;
  }

  _series(run, name, spec, place) {
    const source = run.detail?.points[name]?.x.length ? run.detail : run.all;
    const points = source.points[name];
    if (!points || !points.x.length) return [];
    const many = this._runs.length > 1;
    const own = spec.labels?.[place] ?? name;
    const label = spec.names.length > 1 ? (many ? `${run.name} ${own}` : own) : run.name;
    const isEvaluation = name.startsWith("eval");
    const isSparse = points.x.length <= MOST_DOTS;
    const stride = 1 + Math.max(...this._runs.map(({ color }) => color)); // lines of one run have further colours
    return [{
      name: label, x: points.x, y: points.y, ...(spec.noBand ? {} : { low: points.low, high: points.high }),
      style: points.x.length === 1 || ((spec.style === "both" || isEvaluation) && isSparse) ? "both" : "line",
      smooth: Boolean(spec.smooth) && !isEvaluation,
      color: many || spec.names.length === 1 ? run.color + place * stride : place,
    }];
  }

  _memoryLimits() {
    return [...new Set(this._runs.map(({ summary }) => summary.memory_limit).filter(Boolean))];
  }

  _marks() {
    const many = this._runs.length > 1;
    return this._runs.flatMap((run) => {
      const notes = run.notes.filter((note) => note.marked && note.step !== null)
        .map((note) => ({ x: note.step, text: note.text, level: note.level }));
      const rejections = run.rejections
        .map(([step, count]) => ({ x: step, text: `${count} more records rejected`, level: "warning" }));
      return [...notes, ...rejections].slice(-MOST_MARKS)
        .map((mark) => (many ? { ...mark, text: `${run.name}: ${mark.text}`, color: run.color } : mark));
    });
  }

  _names(run) {
    const isOpen = byId("more").open;
    const shown = [...this._charts.values()].filter(({ isMore }) => isOpen || !isMore).flatMap(({ names }) => names);
    return shown.filter((name) => run.summary.metrics.includes(name));
  }

  /* Make the charts that the runs have metrics for; charts that are there stay. */
  _build() {
    const there = new Set(this._runs.flatMap(({ summary }) => summary.metrics));
    const known = new Set(CHARTS.flatMap(({ names }) => names));
    const evaluations = [...there].filter((name) => !known.has(name) && name.startsWith("eval"));
    const rest = [...there].filter((name) => !known.has(name) && !HIDDEN.has(name) && !evaluations.includes(name));
    const wanted = [
      ...CHARTS.filter(({ names }) => names.some((name) => there.has(name))),
      ...grouped(evaluations),
      ...rest.map((name) => ({ names: [name], title: name.replaceAll("_", " "), ...MORE[name], isMore: true })),
    ];
    const keys = wanted.map(({ names }) => names.join());
    if (String(keys) === this._keys) return;
    this._keys = String(keys);
    for (const [key, { chart, element }] of this._charts) {
      if (keys.includes(key)) continue;
      chart.destroy();
      element.remove();
      this._charts.delete(key);
    }
    for (const spec of wanted) {
      const key = spec.names.join();
      if (!this._charts.has(key)) this._charts.set(key, this._make(spec));
    }
    this._charts = new Map(keys.map((key) => [key, this._charts.get(key)]));
    for (const { parent, element } of this._charts.values()) parent.append(element); // in this order
    byId("more").hidden = !rest.length;
    const charts = [...this._charts.values()].map(({ chart }) => chart);
    if (charts.length) linkCharts(charts);
    charts.forEach((chart, at) => chart.update({ onRange: at ? null : (range) => this._zoom(range) }));
  }

  _make(spec) {
    const parent = byId(spec.isMore ? "more-charts" : "charts");
    const element = make("div", { className: spec.isLarge ? "large" : spec.names.length > 1 ? "" : "plain" });
    parent.append(element);
    const chart = new LineChart(element, {
      title: spec.title, format: spec.format || "number",
      zero: Boolean(spec.zero), height: spec.isLarge ? 300 : 170,
    });
    return { chart, element, parent, spec, names: spec.names, isMore: Boolean(spec.isMore), isNew: true };
  }

  _zoom(range) {
    this.range = range;
    for (const run of this._runs) run.detail = range ? new Curves(run.number, range) : null;
    this._onRange(range);
    this.load();
  }
}

/* The first steps of curves: an evaluation may be before the first training step. */
const firstSteps = (points) => Object.values(points).flatMap(({ x }) => (x.length ? [x[0]] : []));

const limitLine = (limit, [first, last]) => (
  { name: "limit", x: [first, last], y: [limit, limit], color: 7, smooth: false });

/* Return charts of evaluation metrics: those with the same beginning before a slash or a dot share one. */
function grouped(names) {
  const groups = new Map();
  for (const name of names) {
    const key = name.split(/[/.:]/)[0];
    groups.set(key, [...(groups.get(key) || []), name]);
  }
  return [...groups].map(([key, found]) => (
    { names: found, title: (found.length > 1 ? key : found[0]).replaceAll("_", " "), style: "both" }));
}
