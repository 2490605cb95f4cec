/* Numbers, scales and painting of the line charts; loaded before charts.js, which is its only user. */
(() => {
  "use strict";
  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
  const COLORS = 8;
  const LEFT = 60, RIGHT = 12, TOP = 16, BOTTOM = 34;

  const trimmed = (value, digits) => String(Number(value.toPrecision(digits)));
  function scaled(value, units, digits) {
    let unit = 0;
    for (; Math.abs(value) >= 1000 && unit < units.length - 1; unit += 1) value /= 1000;
    return trimmed(value, digits) + units[unit];
  }
  const FORMATS = {
    number(value) {
      const size = Math.abs(value);
      if (size >= 1e15 || (size > 0 && size < 1e-4)) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
      return size >= 1e4 ? scaled(value, ["", "k", "M", "G", "T"], 4) : trimmed(value, 5);
    },
    integer: (value) => (Number.isInteger(value) ? value.toLocaleString("en-US") : FORMATS.number(value)),
    bytes: (value) => scaled(value, [" B", " kB", " MB", " GB", " TB"], 4),
    percent: (value) => `${trimmed(value * 100, 4)} %`,
    seconds(value) {
      if (value !== 0 && Math.abs(value) < 0.1) return `${trimmed(value * 1000, 4)} ms`;
      if (Math.abs(value) < 120) return `${trimmed(value, 4)} s`;
      return Math.abs(value) < 7200 ? `${trimmed(value / 60, 3)} min` : `${trimmed(value / 3600, 4)} h`;
    },
  };

  function numbers(list) {
    return Float64Array.from(list || [], (value) => {
      const number = value === null || value === undefined ? NaN : Number(value);
      return Number.isFinite(number) ? number : NaN;
    });
  }

  /* Return the exponential mean of the points up to each, in which the first points do not weigh more than others. */
  function smoothed(values, weight) {
    let mean = 0, total = 0;
    return values.map((value) => {
      if (Number.isNaN(value)) return NaN;
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

  function linearTicks(low, high, count) {
    const rough = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= rough * 0.999);
    const ticks = [];
    const first = Math.ceil(low / step - 1e-9) + 0; // no -0
    for (let n = first; n * step <= high + step * 1e-9; n += 1) ticks.push(n * step);
    return ticks;
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

  function colorsOf(element) {
    const style = getComputedStyle(element);
    const named = (name) => style.getPropertyValue(`--${name}`).trim() || "#888";
    return {
      back: named("back"), text: named("text"), soft: named("soft"), line: named("line"), focus: named("focus"),
      info: named("soft"), good: named("good"), warning: named("warning"), error: named("error"),
      series: (number) => named(`series-${(number % COLORS) + 1}`),
      font: style.fontFamily || "sans-serif",
    };
  }

  const dashOf = (number) => DASHES[Math.floor(number / COLORS) % DASHES.length];

  /* Return the first and last index of the points in the range, with one neighbour on each side. */
  function visible(xs, [first, last]) {
    return [Math.max(0, lowerBound(xs, first) - 1), Math.min(xs.length - 1, lowerBound(xs, last))];
  }

  /* Return the smallest and the largest value to show, with a margin, and whether the axis is logarithmic. */
  function yLimits(series, range, { log = false, zero = false }) {
    let low = Infinity, high = -Infinity;
    for (const each of series) {
      const [begin, end] = visible(each.xs, range);
      for (const values of [each.values, each.low, each.high]) {
        for (let at = begin; values && at <= end; at += 1) {
          const value = values[at];
          if (Number.isNaN(value) || (log && value <= 0)) continue;
          if (value < low) low = value;
          if (value > high) high = value;
        }
      }
    }
    if (low > high) return log ? [0.1, 1] : [0, 1];
    if (log) {
      const margin = Math.max((high / low) ** 0.05, 1.02);
      return [low / margin, high * margin];
    }
    if (zero) { low = Math.min(low, 0); high = Math.max(high, 0); }
    const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [zero && low === 0 ? 0 : low - margin, high + margin];
  }

  function scalesOf(scene) {
    const { width, height, range, limits, log } = scene;
    const inner = width - LEFT - RIGHT, tall = height - TOP - BOTTOM;
    const [first, last] = range;
    const [low, high] = log ? limits.map(Math.log) : limits;
    return {
      x: (value) => LEFT + ((value - first) / (last - first)) * inner,
      y: (value) => TOP + tall - (((log ? (value > 0 ? Math.log(value) : NaN) : value) - low) / (high - low)) * tall,
    };
  }

  function trace(context, each, values, range, { x, y }) {
    const [begin, end] = visible(each.xs, range);
    context.beginPath();
    let isOpen = false;
    for (let at = begin; at <= end; at += 1) {
      const py = y(values[at]);
      if (Number.isNaN(py)) { isOpen = false; continue; }
      const px = x(each.xs[at]);
      if (isOpen) context.lineTo(px, py);
      else {
        context.moveTo(px, py); // a point between two gaps becomes a dot, as its cap is round
        context.lineTo(px, py);
      }
      isOpen = true;
    }
    context.stroke();
  }

  function fillBand(context, each, range, scale) {
    const [begin, end] = visible(each.xs, range);
    const bottom = (at) => {
      const y = scale.y(each.low[at]);
      return Number.isNaN(y) && each.high[at] > 0 ? scale.floor : y; // the rest of a band on a logarithmic axis
    };
    let at = begin;
    while (at <= end) {
      while (at <= end && Number.isNaN(scale.y(each.high[at]))) at += 1;
      const from = at;
      context.beginPath();
      for (; at <= end && !Number.isNaN(scale.y(each.high[at])); at += 1) {
        context.lineTo(scale.x(each.xs[at]), scale.y(each.high[at]));
      }
      for (let back = at - 1; back >= from; back -= 1) context.lineTo(scale.x(each.xs[back]), bottom(back));
      context.fill();
    }
  }

  function dots(context, each, values, range, scale, radius) {
    const [begin, end] = visible(each.xs, range);
    for (let at = begin; at <= end; at += 1) {
      const y = scale.y(values[at]);
      if (Number.isNaN(y)) continue;
      context.beginPath();
      context.arc(scale.x(each.xs[at]), y, radius, 0, 2 * Math.PI);
      context.fill();
    }
  }

  function paintSeries(context, each, scene, scale, colors) {
    const color = colors.series(each.color);
    Object.assign(context, { strokeStyle: color, fillStyle: color, lineJoin: "round", lineCap: "round" });
    if (each.low && each.high) {
      context.globalAlpha = 0.2;
      fillBand(context, each, scene.range, scale);
    }
    if (each.smooth) {
      Object.assign(context, { globalAlpha: 0.35, lineWidth: 1 });
      trace(context, each, each.values, scene.range, scale);
    }
    const values = each.smooth || each.values;
    Object.assign(context, { globalAlpha: 1, lineWidth: 1.8 });
    context.setLineDash(dashOf(each.color));
    if (each.style !== "points") trace(context, each, values, scene.range, scale);
    context.setLineDash([]);
    if (each.style !== "line") dots(context, each, values, scene.range, scale, 3.2);
  }

  /* Paint the marks of events: a dashed line, and above it a sign whose form tells the level too. */
  function paintEvents(context, scene, scale, colors) {
    const seen = new Set();
    for (const { x, level = "info", color } of scene.events) {
      const at = Math.round(scale.x(x));
      const ink = color === undefined ? colors[level] : colors.series(color);
      if (x < scene.range[0] || x > scene.range[1] || seen.has(`${at} ${level} ${ink}`)) continue;
      seen.add(`${at} ${level} ${ink}`);
      Object.assign(context, { strokeStyle: ink, fillStyle: ink, lineWidth: 1, globalAlpha: 0.7 });
      context.setLineDash([2, 3]);
      context.beginPath();
      context.moveTo(at + 0.5, TOP);
      context.lineTo(at + 0.5, scene.height - BOTTOM);
      context.stroke();
      context.setLineDash([]);
      context.globalAlpha = 1;
      context.beginPath();
      if (level === "error") {
        Object.assign(context, { lineWidth: 2 });
        context.moveTo(at - 3.5, 5); context.lineTo(at + 4.5, 13);
        context.moveTo(at + 4.5, 5); context.lineTo(at - 3.5, 13);
        context.stroke();
        continue;
      }
      if (level === "warning") {
        context.moveTo(at - 4.5, 5); context.lineTo(at + 5.5, 5); context.lineTo(at + 0.5, 14);
      } else if (level === "good") context.rect(at - 3, 6, 7, 7);
      else context.arc(at + 0.5, 9.5, 3, 0, 2 * Math.PI);
      context.fill();
    }
  }

  function paintAxes(context, scene, scale, colors) {
    const { width, height, range, limits, log, xText, yText } = scene;
    const bottom = height - BOTTOM;
    Object.assign(context, { strokeStyle: colors.line, fillStyle: colors.soft, lineWidth: 1 });
    context.font = `11px ${colors.font}`;
    Object.assign(context, { textAlign: "right", textBaseline: "middle" });
    const count = Math.max(2, (bottom - TOP) / 38);
    const ticksOf = (most) => (log ? logTicks : linearTicks)(limits[0], limits[1], most);
    const few = ticksOf(count);
    for (const tick of few.length > 1 ? few : ticksOf(2 * count)) { // one tick alone shows no scale
      const y = Math.round(scale.y(tick)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(width - RIGHT, y);
      context.stroke();
      context.fillText(yText(tick), LEFT - 7, y);
    }
    Object.assign(context, { textAlign: "center", textBaseline: "top" });
    for (const tick of linearTicks(range[0], range[1], Math.max(2, (width - LEFT - RIGHT) / 90))) {
      if (scene.isWhole && !Number.isInteger(tick)) continue;
      const x = Math.round(scale.x(tick)) + 0.5;
      context.beginPath();
      context.moveTo(x, bottom);
      context.lineTo(x, bottom + 4);
      context.stroke();
      const most = width - RIGHT - context.measureText(xText(tick)).width / 2;
      context.fillText(xText(tick), Math.min(x, most), bottom + 6);
    }
    Object.assign(context, { textAlign: "right", textBaseline: "bottom" });
    context.fillText(scene.xName, width - RIGHT, height);
    context.strokeStyle = colors.soft;
    context.beginPath();
    context.moveTo(LEFT, bottom + 0.5);
    context.lineTo(width - RIGHT, bottom + 0.5);
    context.stroke();
  }

  function paintCursor(context, scene, scale, colors) {
    const { cursor, drag, height, range } = scene;
    if (drag) {
      context.globalAlpha = 0.15;
      context.fillStyle = colors.focus;
      context.fillRect(Math.min(drag.from, drag.to), TOP, Math.abs(drag.to - drag.from), height - TOP - BOTTOM);
      context.globalAlpha = 1;
    }
    if (cursor === null || cursor < range[0] || cursor > range[1]) return;
    context.strokeStyle = colors.soft;
    context.lineWidth = 1;
    context.beginPath();
    const x = Math.round(scale.x(cursor)) + 0.5;
    context.moveTo(x, TOP);
    context.lineTo(x, height - BOTTOM);
    context.stroke();
    for (const each of scene.series) {
      if (!each.xs.length) continue;
      const at = nearest(each.xs, cursor);
      const point = { xs: each.xs.subarray(at, at + 1) };
      context.fillStyle = colors.series(each.color);
      if (Math.abs(scale.x(each.xs[at]) - x) < 12) {
        dots(context, point, (each.smooth || each.values).subarray(at, at + 1), range, scale, 4);
      }
    }
  }

  /* Paint `scene` on `canvas`: {width, height, range, limits, log, series, events, cursor, drag, xName, xText, yText,
     isWhole}. */
  function paint(canvas, scene, colors) {
    const ratio = window.devicePixelRatio || 1;
    const [wide, tall] = [Math.round(scene.width * ratio), Math.round(scene.height * ratio)];
    if (canvas.width !== wide || canvas.height !== tall) Object.assign(canvas, { width: wide, height: tall });
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, scene.width, scene.height);
    const scale = { ...scalesOf(scene), floor: scene.height - BOTTOM };
    paintAxes(context, scene, scale, colors);
    paintEvents(context, scene, scale, colors);
    context.save();
    context.beginPath();
    context.rect(LEFT - 4, TOP - 4, scene.width - LEFT - RIGHT + 8, scene.height - TOP - BOTTOM + 8);
    context.clip();
    for (const each of scene.series) paintSeries(context, each, scene, scale, colors);
    paintCursor(context, scene, scale, colors);
    context.restore();
  }

  /* Paint the sign of a series in the legend. */
  function paintSign(canvas, each, colors) {
    const ratio = window.devicePixelRatio || 1;
    Object.assign(canvas, { width: 24 * ratio, height: 10 * ratio });
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const color = colors.series(each.color);
    Object.assign(context, { strokeStyle: color, fillStyle: color, lineWidth: 2.5 });
    context.setLineDash(dashOf(each.color));
    context.beginPath();
    context.moveTo(1, 5);
    context.lineTo(23, 5);
    if (each.style !== "points") context.stroke();
    context.beginPath();
    context.arc(12, 5, 3.5, 0, 2 * Math.PI);
    if (each.style !== "line") context.fill();
  }

  window.ChartPaint = {
    FORMATS, LEFT, RIGHT, colorsOf, lowerBound, nearest, numbers, paint, paintSign, smoothed, yLimits,
  };
})();
