/* Numbers, times and elements for the live page. */
export const FORMAT = window.LineChart.FORMATS;

export const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US"));

/* Four decimals, as the console writes losses. */
export const loss = (value) => (value === null || value === undefined ? "–" : value.toFixed(4));

export const bytes = (value) => (value === null || value === undefined ? "–" : FORMAT.bytes(value));

export const compact = (value) => (value === null || value === undefined ? "–"
  : new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(value).replace("K", "k"));

export const percent = (share) => {
  if (share === null || share === undefined) return "–";
  const value = share * 100;
  return `${value.toFixed(value > 0 && value < 10 ? 1 : 0)} %`;
};

/* A span of time in its two largest units. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = Math.min(units.findIndex(([size]) => seconds >= size), 2);
  const [size, name] = units[at], [small, below] = units[at + 1];
  const rest = Math.floor((seconds % size) / small);
  return `${Math.floor(seconds / size)} ${name}${rest ? ` ${rest} ${below}` : ""}`;
}

export const ago = (time) => {
  const seconds = (Date.now() - Date.parse(time)) / 1000;
  return seconds < 5 ? "just now" : `${span(seconds).split(" ").slice(0, 2).join(" ")} ago`;
};

const pad = (number) => String(number).padStart(2, "0");

export function clock(time, hasDate = true) {
  if (!time) return "";
  const date = new Date(time);
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} `;
  return `${hasDate ? day : ""}${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

/* Return a new element: `make("td", {className: "number"}, "text", child)`. */
export function make(tag, properties = {}, ...children) {
  const { dataset, ...others } = properties;
  const made = Object.assign(document.createElement(tag), others);
  for (const [name, value] of Object.entries(dataset || {})) made.dataset[name] = value;
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

/* Give `parent` new children, unless they look the same: a selection and the focus in it then stay. */
export function show(parent, ...children) {
  const fresh = make("div", {}, ...children);
  if (parent.shownHtml === fresh.innerHTML) return;
  parent.shownHtml = fresh.innerHTML;
  const [top, focused] = [parent.scrollTop, parent.contains(document.activeElement) && document.activeElement.id];
  parent.replaceChildren(...fresh.childNodes);
  parent.scrollTop = top;
  if (focused) byId(focused)?.focus();
}
