/* The data of the live page: a stream of states, and curves that are fetched as finely as they are shown. */

export class Unreachable extends Error {}

async function answer(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    throw new Unreachable("The page's server does not answer.", { cause: error });
  }
  if (response.status === 401) window.location.reload(); // the server has another token now
  const data = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(data.error || `The server answered ${response.status}.`);
  return data;
}

export const fetchOf = (number, what) => answer(`api/runs/${number}/${what}`);

/* Ask for SAVE or STOP: `action` is "save" or "stop", `epoch` that of the state in which the run has this number. The
   header is one that no other site can send. */
export const act = (number, action, epoch) =>
  answer(`api/runs/${number}/${action}?epoch=${epoch}`, { method: "POST", headers: { "X-Holdfast": "1" } });

/* Call `onState(state)` with each state of the runs, and `onLink(isThere)` as the connection comes and goes. */
export function follow(onState, onLink) {
  let source, timer;
  const open = () => {
    source = new EventSource("api/stream");
    source.addEventListener("state", (event) => { onLink(true); onState(JSON.parse(event.data)); });
    source.onopen = () => onLink(true);
    source.onerror = () => {
      onLink(false);
      if (source.readyState !== EventSource.CLOSED) return; // it tries again by itself
      clearTimeout(timer);
      timer = setTimeout(() => answer("api/state").catch(() => null).then(open), 2000);
    };
  };
  open();
  window.addEventListener("pagehide", () => source.close());
  window.addEventListener("pageshow", (event) => { if (event.persisted) open(); });
}

const KEYS = ["x", "y", "low", "high"];

/* The curves of one run over one range of steps, null for all. Only points that are new are fetched. */
export class Curves {
  constructor(number, range = null) {
    this.number = number;
    this.range = range;
    this.points = {};
    this.bucket = 1;
    this._generation = null;
    this._names = "";
    this._width = 0;
  }

  /* Fetch the curves `names`, each of up to `width` points. */
  async load(names, width) {
    const query = new URLSearchParams({ names: names.join(","), width });
    if (this.range) {
      query.set("first", Math.floor(this.range[0]));
      query.set("last", Math.ceil(this.range[1]));
    }
    const isSame = this._names === String(names) && this._width === width;
    const last = Math.max(...Object.values(this.points).map(({ x }) => (x.length ? x[x.length - 1] : -1)));
    if (isSame && last >= 0) {
      query.set("since", last);
      query.set("bucket", this.bucket);
      query.set("generation", this._generation);
    }
    const found = await fetchOf(this.number, `curves?${query}`);
    const isTail = query.has("since") && found.bucket === this.bucket && found.generation === this._generation;
    for (const name of isTail ? Object.keys(found.curves) : names) {
      const fresh = found.curves[name] || { x: [], y: [] };
      const known = this.points[name];
      this.points[name] = isTail && known ? joined(known, fresh, found.first) : fresh;
    }
    [this.bucket, this._generation] = [found.bucket, found.generation];
    [this._names, this._width] = [String(names), width];
  }
}

/* Return `known` with its points from the step `first` on replaced by `fresh`. */
function joined(known, fresh, first) {
  let kept = known.x.length;
  while (kept > 0 && known.x[kept - 1] >= first) kept -= 1;
  const found = {};
  for (const key of KEYS) {
    if (known[key] || fresh[key]) {
      found[key] = [...(known[key] || known.y).slice(0, kept), ...(fresh[key] || fresh.y)];
    }
  }
  return found;
}
