/* The panels of the live page beside its curves, each for the run that is chosen. */
import { ago, byId, bytes, clock, compact, loss, make, percent, show, span, whole } from "./page_format.js";

const USES = [
  ["compute", "computing steps that count", "var(--series-1)"], ["data", "waiting for data", "var(--series-5)"],
  ["save", "saving", "var(--series-3)"], ["evaluation", "evaluation", "var(--series-6)"],
  ["start_up", "start-up", "var(--series-7)"], ["recovery", "recovery", "var(--series-2)"],
  ["restart", "between starts", "var(--series-4)"], ["lost", "steps taken again", "var(--series-8)"],
];
const GOOD_STATES = new Set(["verified", "written"]);
const SIGNS = { warning: "\u25b2 ", error: "\u2715 " };

/* Return the best evaluation in words, "" without one: by the metric of early stopping, or by loss. */
function bestOf({ best, eval_loss: last }) {
  if (best === null || (best.metric === "eval_loss" && last === null)) return "";
  const name = best.metric === "eval_loss" ? "" : ` ${best.metric.replace("eval_", "").replaceAll("_", " ")}`;
  return `best${name} ${loss(best.value)}${name ? ` at step ${whole(best.step)}` : ""}`;
}

export function showHead(summary, isReadOnly) {
  const { state, phase } = summary;
  byId("run-name").textContent = summary.name;
  const chip = byId("state");
  const words = state === "starting" && phase ? `starting: ${phase}` : state;
  if (chip.textContent !== words) chip.textContent = words;
  chip.dataset.state = state;
  const isActive = ["training", "starting", "suspended", "no sign of life"].includes(state);
  for (const name of ["save", "stop"]) {
    const button = byId(name), isAsked = summary.asked.includes(name.toUpperCase());
    button.hidden = isReadOnly;
    button.disabled = !isActive || isAsked;
    button.title = isActive ? "" : "No process trains this run now.";
  }
  byId("asked").hidden = !summary.asked.length;
  byId("asked").textContent = summary.asked.length ? `asked for ${summary.asked.join(" and ")}` : "";
  byId("notice").hidden = !summary.problem;
  byId("notice").textContent = summary.problem || "";
  byId("path").textContent = summary.path;
  document.title = `${summary.loss === null ? state : loss(summary.loss)} · step ${whole(summary.step)} · ${summary.name}`;
}

export function showProgress(summary) {
  const { steps, tokens } = summary.budget;
  const goal = steps ? ` of ${whole(steps)}` : "";
  const spent = summary.tokens === null ? "" : ` · ${compact(summary.tokens)}${tokens ? ` of ${compact(tokens)}` : ""} tokens`;
  show(byId("step"), "step ", make("b", {}, whole(summary.step)), `${goal}${spent}`);
  const left = summary.time_left;
  show(byId("left"), ...(left
    ? [make("span", {}, `${span(left.seconds)} left `), make("span", { className: "soft" }, `at ${left.base}`)]
    : [make("span", { className: "soft" }, summary.last_sign ? `last sign of life ${clock(summary.last_sign)}` : "")]));
  const track = byId("track"), share = summary.share;
  track.hidden = share === null;
  byId("fill").style.width = `${(share || 0) * 100}%`;
  track.setAttribute("aria-valuenow", String(Math.round((share || 0) * 100)));
  const limit = summary.memory_limit;
  const figures = [
    ["Loss", loss(summary.loss)],
    ["Evaluation", loss(summary.eval_loss), bestOf(summary)],
    ["Tokens/s", summary.tokens_per_second === null ? "–" : compact(summary.tokens_per_second), "recent"],
    ["Goodput", summary.goodput.starts ? percent(summary.goodput.share) : "–",
      summary.goodput.starts > 1 ? `${summary.goodput.starts} starts` : ""],
    ["Memory", bytes(summary.memory_bytes), limit ? `of ${bytes(limit)}` : ""],
    ["Model", summary.parameters ? compact(summary.parameters) : "–", [summary.device, summary.ranks > 1 ? `× ${summary.ranks}` : ""].filter(Boolean).join(" ")],
  ];
  show(byId("figures"), ...figures.map(([name, value, more]) => make("div", {}, make("dt", {}, name),
    make("dd", {}, value, more ? make("small", {}, ` ${more}`) : null))));
}

export function showTime({ goodput }) {
  const total = Object.values(goodput.seconds).reduce((sum, seconds) => sum + seconds, 0);
  if (!total) { show(byId("goodput"), make("p", { className: "empty" }, "Nothing is recorded yet.")); return; }
  const parts = USES.map(([key, words, color]) => [words, goodput.seconds[key] || 0, color]).filter(([, seconds]) => seconds / total >= 0.0005);
  const bar = make("div", { className: "split" });
  bar.setAttribute("aria-hidden", "true");
  const uses = make("div", { className: "uses" });
  for (const [words, seconds, color] of parts) {
    const piece = make("span"), sign = make("i");
    piece.style.flexGrow = String(seconds / total);
    piece.style.background = sign.style.background = color;
    bar.append(piece);
    uses.append(sign, make("span", {}, words), make("span", { className: "right" }, percent(seconds / total)),
      make("span", { className: "right soft" }, span(seconds)));
  }
  show(byId("goodput"), bar, uses);
}

export function showCheckpoints(found) {
  byId("checkpoints-count").textContent = found.length ? String(found.length) : "";
  if (!found.length) {
    show(byId("checkpoints"), make("tbody", {}, make("tr", {}, make("td", { className: "empty" }, "There is none yet."))));
    return;
  }
  const rows = found.map((each) => {
    const marks = [each.is_archived && each.is_on_disk && "archived", each.is_pinned && "pinned", each.is_encrypted && "encrypted",
      each.is_best && "best"].filter(Boolean);
    const level = each.problem ? "error" : GOOD_STATES.has(each.state) ? "good" : "soft";
    const saved = each.saved ? ago(each.saved) : "";
    return make("tr", {}, make("td", { className: "number" }, whole(each.step)),
      make("td", {}, make("span", { className: level, title: each.problem || "" }, each.state), marks.length ? ` · ${marks.join(" · ")}` : ""),
      make("td", { className: "number" }, bytes(each.bytes)), make("td", { className: "number" }, loss(each.eval_loss)),
      make("td", { className: "soft", title: each.saved ? `${clock(each.saved)}, ${each.reason}` : "" }, saved));
  });
  show(byId("checkpoints"), head(["step", 1], ["state"], ["size", 1], ["eval loss", 1], ["saved"]), make("tbody", {}, ...rows));
}

/* Show the events except evaluations and saves, which the curves and the table have; `onStep(step)` shows one. */
export function showEvents(notes, onStep) {
  const shown = notes.filter(({ kind }) => kind !== "evaluation" && kind !== "checkpoint").slice(-200).reverse();
  byId("events-count").textContent = shown.length ? String(shown.length) : "";
  if (!shown.length) { show(byId("events"), make("li", { className: "empty" }, "Nothing has happened yet.")); return; }
  show(byId("events"), ...shown.map((note, at) => {
    const where = note.step === null ? make("span", { className: "where" }, "–")
      : make("button", { type: "button", id: `event-${shown.length - at}`, value: String(note.step), title: "Show this step in the curves" }, whole(note.step));
    const text = note.text.replace(/^step [\d,]+ · /, "");
    return make("li", {}, where, make("p", { title: `${note.kind}, ${clock(note.time)}` },
      SIGNS[note.level] ? make("span", { className: note.level }, SIGNS[note.level]) : null, text));
  }));
  byId("events").onclick = (event) => {
    const button = event.target.closest("button");
    if (button) onStep(Number(button.value));
  };
}

export function showLog(notes, isNewestFirst) {
  const lines = notes.slice(-2000).map((note) => make("li", {}, make("time", { dateTime: note.time || "" }, clock(note.time)),
    make("p", { className: note.level === "warning" || note.level === "error" ? note.level : "" }, note.text)));
  show(byId("log-list"), ...(isNewestFirst ? lines.reverse() : lines));
}

export function showSettings(settings, text, onlyChanged) {
  const isOrigin = settings.some(({ origin }) => origin !== null);
  const words = text.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const shown = settings.filter((each) => words.every((word) => each.name.toLowerCase().includes(word)
      || JSON.stringify(each.value).toLowerCase().includes(word))
    && (words.length || !onlyChanged || !isOrigin || each.origin !== "default" || each.chosen !== null));
  const rows = shown.map((each) => make("tr", {}, make("td", {}, make("code", {}, each.name)),
    make("td", {}, make("span", { className: "value" }, written(each.value)),
      each.chosen === null ? null : make("span", { className: "soft" }, ` \u2192 ${each.chosen}: ${each.reason}`)),
    make("td", { className: each.origin === "default" ? "soft" : "" }, each.origin ?? "not recorded")));
  show(byId("settings-table"), head(["setting"], ["value"], ["origin"]), make("tbody", {}, ...rows));
}

export function showSamples(samples) {
  const parent = byId("samples");
  if (!samples.length) {
    show(parent, make("p", { className: "empty" }, "The run has generated no texts. With evaluation.prompts it generates some at each evaluation."));
    return;
  }
  show(parent, ...samples.slice(0, 60).map((each) => {
    const { step, prompt = "", text, completion } = each;
    const about = [`step ${whole(step)}`, each.seed === undefined ? "" : `seed ${each.seed}`, each.temperature === undefined ? "" : `temperature ${each.temperature}`, each.time ? clock(each.time) : ""].filter(Boolean);
    let rest = String(completion ?? text ?? "");
    if (completion === undefined && prompt && rest.startsWith(prompt)) rest = rest.slice(prompt.length);
    return make("article", { className: "sample" }, make("header", {}, about.join(" · ")),
      make("p", {}, make("span", { className: "prompt" }, prompt), rest));
  }));
}

/* Show a row for each run; `actions` are choose(number), toggle(number). */
export function showRuns(runs, chosen, hidden, colors, actions) {
  byId("runs").hidden = runs.length < 2;
  if (runs.length < 2) return;
  const rows = runs.map((run) => {
    const swatch = make("span", { className: "swatch" });
    swatch.style.background = colors(run.number);
    const toggle = make("button", { type: "button", className: "toggle", id: `toggle-${run.number}`, title: "Show or hide its curves", value: String(run.number) }, swatch, hidden.has(run.number) ? "hidden" : "shown");
    toggle.setAttribute("aria-pressed", String(!hidden.has(run.number)));
    const choose = make("button", { type: "button", id: `choose-${run.number}`, className: "choose", value: String(run.number) }, run.name);
    if (run.number === chosen) choose.setAttribute("aria-current", "true");
    return make("tr", { className: run.number === chosen ? "chosen" : "" }, make("td", {}, toggle), make("td", {}, choose),
      make("td", {}, make("span", { className: "chip", dataset: { state: run.state } }, run.state)),
      ...[whole(run.step), percent(run.share), loss(run.loss), loss(run.eval_loss), loss(run.best_eval_loss),
        compact(run.tokens_per_second), run.goodput.starts ? percent(run.goodput.share) : "–",
        run.time_left ? span(run.time_left.seconds) : "–"].map((text) => make("td", { className: "number" }, text)));
  });
  show(byId("runs-table"), head([""], ["run"], ["state"], ["step", 1], ["done", 1], ["loss", 1], ["eval", 1], ["best eval", 1], ["tokens/s", 1], ["goodput", 1], ["left", 1]),
    make("tbody", {}, ...rows));
  byId("runs-table").onclick = (event) => {
    const button = event.target.closest("button");
    if (button) (button.classList.contains("toggle") ? actions.toggle : actions.choose)(Number(button.value));
  };
}

function head(...names) {
  return make("thead", {}, make("tr", {}, ...names.map(([name, isNumber]) => {
    const cell = make("th", { className: isNumber ? "number" : "", scope: "col" }, name);
    if (!name) cell.append(make("span", { className: "visually-hidden" }, "curves"));
    return cell;
  })));
}

const written = (value) => (typeof value === "string" ? value : JSON.stringify(value));
