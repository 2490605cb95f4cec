/* The live page: takes the states that the server sends, and fetches what they say has changed. */
import { ChartBoard } from "./page_charts.js";
import { act, fetchOf, follow } from "./page_data.js";
import { byId } from "./page_format.js";
import { showCheckpoints, showEvents, showHead, showLog, showProgress, showRuns, showSamples, showSettings, showTime } from "./page_panels.js";

const THEMES = ["auto", "light", "dark"];
const page = { state: null, chosen: 0, hidden: new Set(), build: null, details: new Map() };

const stored = (name, usual) => { try { return localStorage.getItem(`holdfast-${name}`) ?? usual; } catch { return usual; } };
const store = (name, value) => { try { localStorage.setItem(`holdfast-${name}`, value); } catch { /* private window */ } };

const charts = new ChartBoard((range) => {
  byId("reset").hidden = !range;
  byId("range").textContent = range ? `steps ${range.map((step) => Math.round(step).toLocaleString("en-US")).join(" to ")}` : "";
});

const colorOf = (number) => getComputedStyle(document.documentElement).getPropertyValue(`--series-${(number % 8) + 1}`);
const chosenRun = () => page.state.runs[page.chosen];

/* What is fetched of each run apart from its curves, and the part of its state that tells of a change. */
const PARTS = {
  notes: (run) => `${run.notes}-${run.generation}-${run.rejected}`,
  checkpoints: (run) => `${run.checkpoints}-${run.notes}`,
  settings: (run) => `${run.id}-${run.phase}-${run.notes}`,
  samples: (run) => run.samples,
};

function detailsOf(number) {
  if (!page.details.has(number)) page.details.set(number, { notes: [], rejections: [], checkpoints: [], settings: [], samples: [], stamps: {} });
  return page.details.get(number);
}

async function fetchParts(run, names) {
  const details = detailsOf(run.number);
  await Promise.all(names.map(async (name) => {
    const stamp = `${page.state.epoch}-${PARTS[name](run)}`;
    if (details.stamps[name] === stamp) return;
    details.stamps[name] = stamp;
    try {
      const found = await fetchOf(run.number, name);
      if (details.stamps[name] !== stamp) return; // a later answer is there
      if (name === "notes") Object.assign(details, { notes: found.notes, rejections: found.rejections });
      else details[name] = found;
    } catch {
      if (details.stamps[name] === stamp) details.stamps[name] = null; // again with the next state
    }
  }));
}

async function onState(state) {
  if (page.build && page.build !== state.build) { window.location.reload(); return; }
  page.build = state.build;
  page.state = state;
  if (page.chosen >= state.runs.length) page.chosen = 0;
  byId("build").textContent = `Holdfast ${state.build}`;
  showState();
  await Promise.all(state.runs.map((run) => fetchParts(run, run.number === page.chosen ? Object.keys(PARTS) : ["notes"])));
  showDetails();
  showCurves();
}

function showState() {
  const run = chosenRun();
  showHead(run, page.state.read_only);
  showProgress(run);
  showTime(run);
  showRuns(page.state.runs, page.chosen, page.hidden, colorOf, {
    choose: (number) => choose(number),
    toggle: (number) => {
      if (!page.hidden.delete(number)) page.hidden.add(number);
      showState();
      showCurves();
    },
  });
}

function showDetails() {
  const details = detailsOf(page.chosen);
  showCheckpoints(details.checkpoints);
  showEvents(details.notes, (step) => zoomTo(step));
  showSamples(details.samples);
  showSettings(details.settings, byId("filter").value, byId("changed").checked);
  showLog(details.notes, byId("newest").checked);
}

function showCurves() {
  const runs = page.state.runs.filter(({ number }) => !page.hidden.has(number));
  charts.setRuns(runs.map((run) => ({
    number: run.number, name: run.name, color: run.number, summary: run, epoch: page.state.epoch,
    notes: detailsOf(run.number).notes, rejections: detailsOf(run.number).rejections,
  })));
}

async function choose(number) {
  page.chosen = number;
  showState();
  await fetchParts(chosenRun(), Object.keys(PARTS));
  showDetails();
}

function zoomTo(step) {
  const run = chosenRun();
  const half = Math.max(20, Math.round((run.step - (run.first_step ?? 0)) / 40));
  charts.setRange([step - half, step + half]);
  byId("curves").scrollIntoView({ block: "start", behavior: "smooth" });
}

/* Ask the person, then the run. */
async function confirmAndAct(action) {
  const run = chosenRun(), { epoch } = page.state, isStop = action === "stop";
  byId("refusal").hidden = true;
  byId("confirm-title").textContent = isStop ? `Stop ${run.name}?` : `Save a checkpoint of ${run.name}?`;
  byId("confirm-text").textContent = isStop
    ? "The run saves a checkpoint after the current step and ends. The command that started it continues it from there."
    : "The run saves a checkpoint after the current step and goes on. Later checkpoints replace it like any other, unless it is pinned.";
  const yes = byId("confirm-yes");
  yes.textContent = isStop ? "Save and stop" : "Save";
  yes.className = isStop ? "danger" : "primary";
  const dialog = byId("confirm");
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue !== "yes") return;
  try {
    const { asked } = await act(run.number, action, epoch);
    run.asked = asked;
    showHead(run, page.state.read_only);
  } catch (error) {
    byId("refusal").textContent = error.message;
    byId("refusal").hidden = false;
  }
}

function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  const words = { auto: "Auto", light: "Light", dark: "Dark" }[name];
  byId("theme").textContent = words;
  byId("theme").setAttribute("aria-label", `Theme: ${words}`);
  store("theme", name);
  charts.redraw();
  if (page.state) showState();
}

const nextTheme = () => setTheme(THEMES[(THEMES.indexOf(stored("theme", "auto")) + 1) % THEMES.length]);

function setSmoothing(value) {
  const percent = Math.max(0, Math.min(99, value));
  byId("smoothing").value = String(percent);
  byId("smoothing-value").textContent = (percent / 100).toFixed(2);
  store("smoothing", percent);
  charts.setOptions({ smoothing: percent / 100 });
}

function setLog(isLog) {
  byId("log").checked = isLog;
  store("log", isLog);
  charts.setOptions({ log: isLog });
}

function listenToTabs() {
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const open = (tab) => {
    for (const each of tabs) {
      each.setAttribute("aria-selected", String(each === tab));
      each.tabIndex = each === tab ? 0 : -1;
      byId(each.getAttribute("aria-controls")).hidden = each !== tab;
    }
  };
  for (const [at, tab] of tabs.entries()) {
    tab.onclick = () => open(tab);
    tab.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(at + step + tabs.length) % tabs.length];
      open(next);
      next.focus();
    };
  }
}

function listenToKeys() {
  const actions = {
    l: () => setLog(!byId("log").checked), t: nextTheme, "?": () => byId("keys").showModal(),
    "[": () => setSmoothing(Number(byId("smoothing").value) - 10), "]": () => setSmoothing(Number(byId("smoothing").value) + 10),
    n: () => choose((page.chosen + 1) % page.state.runs.length), 0: () => charts.setRange(null), Escape: () => charts.setRange(null),
  };
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, select, textarea, dialog[open]");
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action || isTyping || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !page.state) return;
    action();
  });
}

byId("save").onclick = () => confirmAndAct("save");
byId("stop").onclick = () => confirmAndAct("stop");
byId("theme").onclick = nextTheme;
byId("help").onclick = () => byId("keys").showModal();
byId("reset").onclick = () => charts.setRange(null);
byId("smoothing").oninput = (event) => setSmoothing(Number(event.target.value));
byId("log").onchange = (event) => setLog(event.target.checked);
byId("marks").onchange = (event) => charts.setOptions({ marks: event.target.checked });
for (const id of ["filter", "changed", "newest"]) byId(id).addEventListener("input", showDetails);
listenToTabs();
listenToKeys();
setTheme(stored("theme", "auto"));
setSmoothing(Number(stored("smoothing", 60)));
setLog(stored("log", "false") === "true");
setInterval(() => page.state && showCheckpoints(detailsOf(page.chosen).checkpoints), 30000);
follow(onState, (isThere) => { byId("connection").textContent = isThere ? "" : "no connection, trying again"; });
